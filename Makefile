# demo and test set everything up by themselves; no sudo, no GPU. See CONTRIBUTING.md.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SITE_READY := $(VENV)/.site

.PHONY: demo docs test test-essential test-slow check format web browser bench bench-deploy bench-quick peepholes bench-algorithms bench-train bench-memory bench-parts bench-steps bench-growth bench-cost bench-ablation profile-plan profile-record profile-operators profile-forms certify \
	gpu-record conformance corpus clean corpus-gate corpus-compare golden golden-tiny corpus-update corpus-update-full patterns attack doors

demo: $(READY)            ## optimise two real models and print before/after
	@$(BIN)/superopt optimize corpus/resnet50.json --measure
	@$(BIN)/superopt optimize corpus/mobileone_s0.json --measure

# Tests of servers and commands wait for other processes, so that a process a core would leave cores idle.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
test: $(READY)            ## the test suite, a process a core and one (pytest-xdist waits for ever where it replaces a crashed one by file)
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m "not slow" --durations 12

test-essential: $(READY)  ## the tests that a newcomer reads and runs first: half a minute (tests/README.md)
	@$(BIN)/pytest -q -m essential $$(grep -rlE "mark\.essential|ESSENTIAL =" tests --include='test_*.py') tests/pipeline

test-slow: $(READY)       ## tests of minutes: the same bytes from one process, Dask and MPI, with kills
	@$(BIN)/pytest -q -m slow

check: $(READY)           ## everything that CI runs besides the tests: format, lint, types, import contract, wheel
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python .ci/wheel.py

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(SITE_READY)       ## the documentation as a site in build/site: links checked, tables compared with their data
	@$(BIN)/python lab/tables.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

web:                      ## the interactive parts of the service's pages (needs Node; without them pages say so)
	@cd server/web && { test node_modules/.package-lock.json -nt package-lock.json || npm ci --silent --no-audit --no-fund; } \
		&& npm run --silent build

browser: $(READY)         ## drive the pages in Chromium; screenshots in build/screenshots (skipped without Chromium or Node)
	@$(BIN)/pytest -q tests/browser

DEPLOY_PEERS := ort,onnxsim,onnxslim,onnxscript
PEERS := ort,onnxsim,onnxslim,onnxscript,onnxoptimizer,inductor
bench: $(READY)           ## the corpus beside other optimisers, on a quiet machine: lab/results/benchmark.*; at most 25 minutes a call, run again to go on
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[bench]'
	@mkdir -p build
	@$(BIN)/superopt bench corpus/*.json --vs $(PEERS) --peer-limit 30 --race-limit 18 \
		--total-limit 1440 --resume build/bench \
		--json lab/results/benchmark.json --markdown lab/results/benchmark.md --html build/bench.html -f
	@$(BIN)/python lab/tables.py

bench-deploy: $(READY)    ## networks exported by PyTorch and transformers, beside other optimisers, on a quiet machine: lab/results/deployments.*; run it again to go on
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[bench,torch]' transformers
	@mkdir -p build
	@test -d build/deployments || $(BIN)/python -m lab.deployments build/deployments
	@$(BIN)/superopt bench build/deployments/*.onnx --vs $(DEPLOY_PEERS) --peer-limit 30 --race-limit 18 \
		--total-limit 1440 --resume build/bench-deploy \
		--json lab/results/deployments.json --markdown lab/results/deployments.md -f

bench-quick: $(READY)     ## --effort quick from start to file beside OnnxSlim, onnxsim and onnxscript where installed: seconds and modelled ratios; quiet
	@mkdir -p build
	@$(BIN)/python -m lab.quick_effort_benchmark corpus/*.json --json build/quick.json

peepholes: $(READY)       ## record which rules the recorded results of `make golden` rest on: rules/peepholes.json
	@$(BIN)/python -m lab.peephole_recording

corpus-gate: $(READY)     ## modelled costs of tiny models of every family against the recorded baseline; who made them worse?
	@$(BIN)/superopt corpus compare

golden: export SUPEROPT_CACHE = build/golden
golden: $(READY)          ## results under recorded prices beside the recorded ones: corpus, tiny and full-size, and 20 networks
	@rm -rf build/golden
	@$(BIN)/python -m lab.golden tiny networks full

golden-tiny: export SUPEROPT_CACHE = build/golden
golden-tiny: $(READY)     ## the same for the tiny models alone: in CI
	@rm -rf build/golden
	@$(BIN)/python -m lab.golden tiny

corpus-compare: $(READY)  ## the same for the whole corpus at full size: 10 minutes where its regions were searched before
	@$(BIN)/superopt corpus compare corpus --baseline corpus/baselines/full.json --resume build/corpus

corpus-update: $(READY)   ## record the baseline of corpus-gate
	@$(BIN)/superopt corpus update

corpus-update-full: $(READY)  ## record the baseline of corpus-compare; at most 15 minutes a call, run again to go on
	@$(BIN)/superopt corpus update corpus --baseline corpus/baselines/full.json --target profile:cpu-epyc-2core \
		--resume build/corpus --total-limit 840

patterns: $(READY)        ## which patterns of other tools our rules find: lab/results/patterns.md
	@$(BIN)/python corpus/patterns.py

bench-ablation: $(READY)  ## modelled and measured gains with our rules, with what each model adds, with TASO's, and with none; goes on where it stopped
	@$(BIN)/python -m lab.ablation corpus/*.json --time-limit 25 --race-limit 6 --total-limit 1440 --measure \
		--discover 30 --library taso=tests/discovery/taso/shipped --json lab/results/ablation.json --markdown lab/results/ablation.md
	@$(BIN)/python lab/tables.py

bench-algorithms: $(READY)  ## operators and models with fewer multiplications beside what they were: the tables of lab/notes/algorithms.md
	@$(BIN)/python -m lab.algorithms

bench-train: export TORCHINDUCTOR_CACHE_DIR = $(CURDIR)/build/bench-train/inductor
bench-train: $(READY)     ## training steps beside eager PyTorch and inductor: lab/notes/training.md; 6 minutes and PyTorch's installation, on a quiet machine
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[torch]'
	@$(BIN)/python -m lab.training

STEPS ?= mobilenet_v2 whisper_encoder conv_tasnet
bench-memory: $(READY)    ## what models take in ONNX Runtime, written for memory and not: the tables of lab/notes/memory.md; run it again to go on
	@$(BIN)/python -m lab.memory corpus/tiny/*.json --title "Tiny models" --resume build/memory/tiny.jsonl
	@$(BIN)/python -m lab.memory corpus/*.json --title "Full size" --resume build/memory/full.jsonl
	@$(BIN)/python -m lab.memory corpus/*.json --share 0.1 --seconds 600 --title "Full size, for a tenth of the time" --files build/memory/parts --resume build/memory/parts.jsonl
	@$(BIN)/python -m lab.training_memory $(STEPS:%=corpus/%.json)
	@$(BIN)/python -m lab.training_memory corpus/mobileone_s0.json --share 0.05

bench-parts: $(READY)     ## models that bench-memory has planned for a tenth of the time beside what they were, timed; quiet, run it again to go on
	@$(BIN)/python -m lab.memory corpus/*.json --race --title "Full size, for a tenth of the time" --files build/memory/parts --resume build/memory/parts.jsonl

bench-steps: $(READY)     ## training steps that bench-memory has planned beside what they were, timed: lab/notes/memory.md; at most 10 minutes, quiet
	@$(BIN)/python -m lab.training_memory --race --page lab/notes/memory.md

bench-handmade: $(READY)  ## our result beside the same rewrite made by hand, where the corpus's sizes are not the prototype's
	@$(BIN)/python corpus/handmade.py

COSTED ?= bert_2 deep_linear expand_conv googlenet gpt2_last linear_attention lora lstm mobilenet_v2 mobileone_s0 nasrnn \
	resnet18 resnet50 segformer shufflenet_v2 siamese squeezenet swin_tiny unet
bench-cost: export SUPEROPT_CACHE = build/bench-cost/cache
bench-cost: $(READY)      ## modelled against measured time, from measurements of its own; at most 13 minutes a call, run again to go on
	@$(BIN)/superopt bench --cost $(COSTED:%=corpus/%.json) --total-limit 720 --resume build/bench-cost \
		--json build/bench-cost.json -f
	@$(BIN)/superopt bench --cold corpus/resnet50.json

PROFILE ?= superopt/cost/profiles/cpu-epyc-2core.jsonl.gz
PLAN    ?= build/profile-plan.jsonl.gz
profile-plan: $(READY)    ## find out what PROFILE lacks for the corpus: a plan for profile-record, on any machine, however busy; run it again to go on
	@test -f $(PLAN) || { mkdir -p $(dir $(PLAN)) && cp $(PROFILE) $(PLAN); }
	@$(BIN)/superopt profile corpus/tiny/*.json corpus/*.json --out $(PLAN) --extend --time-limit 690 -f

profile-record: $(READY)  ## record PROFILE on this quiet machine for the corpus, first what is planned; at most 12 minutes, run it again to go on
	@$(BIN)/superopt profile $(wildcard $(PLAN)) corpus/tiny/*.json corpus/*.json --out $(PROFILE) --time-limit 690 -f

profile-operators: $(READY)  ## add to PROFILE what operators by themselves take, at types that are drawn, on this quiet machine; at most 8 minutes, run it again to go on
	@$(BIN)/python -m lab.operator_models build/operators --each 20 --seed 7
	@$(BIN)/superopt profile build/operators/*.json --out $(PROFILE) --extend --time-limit 450

profile-forms: $(READY)   ## add to PROFILE what forms of drawn operators ask for, on this quiet machine; at most 8 minutes, run it again to go on
	@$(BIN)/python -m lab.algorithms --plan build/forms --count 120 --seed 7
	@$(BIN)/superopt profile build/forms/*.json --out $(PROFILE) --extend --time-limit 450

bench-growth: $(READY)    ## search time and memory against layers, nodes and rules
	@$(BIN)/python tests/growth.py

conformance: $(READY)     ## the onnx package's own test models through convert and optimize; writes lab/results/conformance.md
	@$(BIN)/python tests/conformance.py --optimize

doors: $(READY)           ## every model through every door, at default limits and those of a 2 GiB container; hours, run it again to go on
	@$(BIN)/python tests/doors.py corpus/*.json

attack: $(READY)          ## 2,000 generated models against ONNX Runtime, optimisations off: build/attack.json (lab/notes/attacks.md)
	@$(BIN)/python tests/attack/run.py --models 2000 --workers 2 --out build/attack.json

gpu-record: $(READY)      ## on a machine with a GPU: gpu tests, profile, whole models; resumable, 8 minutes a call
	@$(BIN)/python tests/gpu_record.py

certify: $(READY)         ## certify the rules that rules/certificates/record.json does not hold: checker, Z3 and cvc5
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[certify]'
	@$(BIN)/python -m superopt.verifier.certificates.certify_library

corpus: $(READY)          ## write corpus/*.json again from corpus/build.py
	@$(BIN)/python corpus/build.py

$(READY): pyproject.toml
	@echo "setting up $(VENV) (once; about a minute)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev,openvino,dask,mpi]' mpich
	@$(BIN)/python -m compileall -q superopt rules server verifier -x node_modules  # else, where Python writes no bytecode, each run compiles
	@$(BIN)/python -m superopt.passes.precompile 2>/dev/null
	@touch $(READY)

$(SITE_READY): $(READY)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[docs]'
	@touch $(SITE_READY)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
