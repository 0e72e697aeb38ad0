"""Deployments whose architectures come from configurations of ``transformers``, with random weights.

Widths are those of small published checkpoints; where a network repeats one block, it has fewer of them, so that its
export takes seconds. :mod:`lab.deployments` exports them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

__all__ = ["CONFIGURED", "DeploymentExport", "drawn", "image"]


@dataclass(frozen=True)
class DeploymentExport:
    """A network and how it is exported.

    Attributes:
        make: the module, in evaluation mode.
        inputs: example inputs by name.
        free: dimensions that stay open, by input: axis and name.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[], Mapping[str, torch.Tensor]]
    free: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)


def drawn(made: nn.Module) -> nn.Module:
    """The module with weights that keep activations as large as training leaves them, and statistics of its own."""
    for part in made.modules():
        if isinstance(part, _CONVOLUTIONS) and part.weight.requires_grad and set(part.kernel_size) != {1}:
            nn.init.kaiming_normal_(part.weight)
        elif isinstance(part, (*_CONVOLUTIONS, nn.Linear)) and part.weight.requires_grad:
            nn.init.kaiming_normal_(part.weight, nonlinearity="linear")
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.2, 0.2)
            nn.init.uniform_(part.running_mean, -0.2, 0.2)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
    return made.eval()


class NamedInputModel(nn.Module):
    """A model of ``transformers`` with named inputs, and one tensor of what it returns."""

    def __init__(self, model: nn.Module, inputs: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model, self.inputs, self.output = model, inputs, output

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        made = self.model(**dict(zip(self.inputs, given, strict=True)))
        found: torch.Tensor = made if isinstance(made, torch.Tensor) else made[self.output]
        return found


class DecoderStep(nn.Module):
    """One token of a decoder with its cache: logits, and keys and values one longer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, mask: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import transformers

        cache = transformers.DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        made = self.model(input_ids=token, attention_mask=mask, past_key_values=cache, use_cache=True)
        kept = [tensor for layer in made.past_key_values.layers for tensor in (layer.keys, layer.values)]
        return made.logits, *kept


class EncoderDecoderStep(nn.Module):
    """One token of a decoder that reads what an encoder made."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, states: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import transformers

        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
        for layer in range(len(past) // 4):
            own, others = past[4 * layer : 4 * layer + 2], past[4 * layer + 2 : 4 * layer + 4]
            cache.self_attention_cache.update(*own, layer)
            cache.cross_attention_cache.update(*others, layer)
            cache.is_updated[layer] = True
        made = self.model(decoder_input_ids=token, encoder_outputs=(states,), past_key_values=cache, use_cache=True)
        kept = made.past_key_values.self_attention_cache.layers
        return made.logits, *[tensor for layer in kept for tensor in (layer.keys, layer.values)]


def _model(kind: str, settings: Mapping[str, Any]) -> nn.Module:
    """A model by the names of its classes and settings of its configuration; a nested ``(class, settings)`` is a
    configuration of its own."""
    import transformers

    configuration, name = kind.split()
    found = getattr(transformers, configuration)(**{k: _setting(v) for k, v in settings.items()})
    found._attn_implementation = "eager"  # all have it, and exporters of either kind write it
    return drawn(getattr(transformers, name)(found))


def _setting(value: Any) -> Any:
    import transformers

    if not isinstance(value, tuple):
        return value
    kind, settings = value
    return getattr(transformers, kind)(**settings, attn_implementation="eager")


_Inputs = Callable[[], Mapping[str, torch.Tensor]]


def _configured(
    kind: str, output: str, inputs: _Inputs, free: Mapping[str, Mapping[int, str]] | None = None, part: str = "",
    **settings: Any,
) -> DeploymentExport:  # fmt: skip
    """A model of ``transformers``, or one ``part`` of it."""

    def make() -> nn.Module:
        whole = _model(kind, settings)
        return NamedInputModel(getattr(whole, part) if part else whole, tuple(inputs()), output)

    return DeploymentExport(make, inputs, free or {})


def image(size: int, name: str = "pixel_values") -> _Inputs:
    """One picture."""
    return lambda: {name: torch.rand(1, 3, size, size)}


def _tokens(vocabulary: int, length: int = 64, batch: int = 1) -> _Inputs:
    return lambda: {
        "input_ids": torch.randint(0, vocabulary, (batch, length)),
        "attention_mask": torch.ones(batch, length, dtype=torch.int64),
    }


def _sound(name: str, *shape: int) -> _Inputs:
    return lambda: {name: torch.randn(1, *shape)}


def _decoder_step(
    kind: str, *, vocabulary: int, layers: int, heads: int, width: int, past: int = 128, **settings: Any
) -> DeploymentExport:  # fmt: skip
    """One token behind ``past`` others; ``heads`` of keys and values."""

    def inputs() -> Mapping[str, torch.Tensor]:
        caches = {f"past_{n}_{part}": torch.randn(1, heads, past, width) for n in range(layers) for part in ("k", "v")}
        mask = torch.ones(1, past + 1, dtype=torch.int64)
        return {"token": torch.randint(0, vocabulary, (1, 1)), "mask": mask, **caches}

    return DeploymentExport(lambda: DecoderStep(_model(kind, {"vocab_size": vocabulary, **settings})), inputs)


def _step_beside_encoder(
    kind: str, *, vocabulary: int, layers: int, heads: int, width: int, read: int, past: int = 64, **settings: Any
) -> DeploymentExport:  # fmt: skip
    """One token behind ``past`` others, beside ``read`` positions of an encoder."""

    def inputs() -> Mapping[str, torch.Tensor]:
        parts = {"k": past, "v": past, "read_k": read, "read_v": read}
        caches = {
            f"past_{n}_{part}": torch.randn(1, heads, length, width)
            for n in range(layers)
            for part, length in parts.items()
        }
        states = torch.randn(1, read, heads * width)
        return {"token": torch.randint(0, vocabulary, (1, 1)), "states": states, **caches}

    return DeploymentExport(lambda: EncoderDecoderStep(_model(kind, {"vocab_size": vocabulary, **settings})), inputs)


_OPEN = {0: "batch", 1: "length"}
_TEXT = {"input_ids": _OPEN, "attention_mask": _OPEN}
_SMALL: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
}
_DECODER: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 1024,
}
_GROUPED: dict[str, Any] = {**_DECODER, "num_key_value_heads": 2}
_PYRAMID = ("stage1", "stage2", "stage3", "stage4")
_RESNET18: dict[str, Any] = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
CONFIGURED: Mapping[str, DeploymentExport] = {
    # text
    "minilm": _configured("BertConfig BertModel", "last_hidden_state", _tokens(30522, 16, 2), _TEXT,
                          hidden_size=384, num_hidden_layers=6, intermediate_size=1536, num_attention_heads=12),
    "distilbert": _configured("DistilBertConfig DistilBertForSequenceClassification", "logits", _tokens(30522),
                              n_layers=4),
    "roberta": _configured("RobertaConfig RobertaForTokenClassification", "logits", _tokens(30000), **_SMALL),
    "albert": _configured("AlbertConfig AlbertModel", "last_hidden_state", _tokens(30000), **_SMALL),
    "electra": _configured("ElectraConfig ElectraForQuestionAnswering", "start_logits", _tokens(30000),
                           num_hidden_layers=6),
    "deberta_v2": _configured("DebertaV2Config DebertaV2Model", "last_hidden_state", _tokens(30000),
                              relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=64,
                              **{**_SMALL, "num_hidden_layers": 3}),
    "mpnet": _configured("MPNetConfig MPNetModel", "last_hidden_state", _tokens(30000), **_SMALL),
    "mobilebert": _configured("MobileBertConfig MobileBertModel", "last_hidden_state", _tokens(30000),
                              num_hidden_layers=6),
    "modernbert": _configured("ModernBertConfig ModernBertModel", "last_hidden_state", _tokens(30000), **_SMALL),
    "t5_encoder_small": _configured("T5Config T5EncoderModel", "last_hidden_state", _tokens(32000), d_model=384,
                                    num_layers=3, num_heads=6, d_kv=64, d_ff=1024),
    "clip_text": _configured("CLIPTextConfig CLIPTextModel", "pooler_output", _tokens(49000, 77), num_hidden_layers=4,
                             eos_token_id=2),
    # language models: whole prompts and one token
    "gpt2_prompt": _configured("GPT2Config GPT2LMHeadModel", "logits", _tokens(50257), n_embd=384, n_layer=4, n_head=6,
                               use_cache=False),
    "qwen2_prompt": _configured("Qwen2Config Qwen2ForCausalLM", "logits", _tokens(32000), vocab_size=32000,
                                use_cache=False, **_GROUPED),
    "gemma2_prompt": _configured("Gemma2Config Gemma2ForCausalLM", "logits", _tokens(16000), vocab_size=16000,
                                 head_dim=64, use_cache=False, **_GROUPED),
    "bloom_prompt": _configured("BloomConfig BloomForCausalLM", "logits", _tokens(16000), vocab_size=16000,
                                hidden_size=384, n_layer=3, n_head=6, use_cache=False),
    "mamba": _configured("MambaConfig MambaForCausalLM", "logits",
                         lambda: {"input_ids": torch.randint(0, 8000, (1, 32))}, hidden_size=256, num_hidden_layers=3,
                         vocab_size=8000, use_cache=False),
    "gpt2_step": _decoder_step("GPT2Config GPT2LMHeadModel", vocabulary=16000, layers=4, heads=6, width=64, n_embd=384,
                       n_layer=4, n_head=6),
    "llama_step": _decoder_step("LlamaConfig LlamaForCausalLM", vocabulary=16000, layers=3, heads=2, width=64,
                                **_GROUPED),
    "t5_step": _step_beside_encoder("T5Config T5ForConditionalGeneration", vocabulary=16000, layers=3, heads=6,
                                    width=64, read=64, d_model=384, num_layers=3, num_heads=6, d_kv=64, d_ff=1024),
    # pictures
    "clip_vision": _configured("CLIPVisionConfig CLIPVisionModel", "pooler_output", image(224), patch_size=32),
    "siglip": _configured("SiglipVisionConfig SiglipVisionModel", "pooler_output", image(224), **_SMALL),
    "resnet50": _configured("ResNetConfig ResNetModel", "pooler_output", image(224)),
    "convnext_tiny": _configured("ConvNextConfig ConvNextModel", "pooler_output", image(224)),
    "segformer_b0": _configured("SegformerConfig SegformerForSemanticSegmentation", "logits", image(512)),
    "vit": _configured("ViTConfig ViTForImageClassification", "logits", image(224), **_SMALL),
    "dinov2": _configured("Dinov2Config Dinov2Model", "last_hidden_state", image(224), hidden_size=384,
                          num_hidden_layers=4, num_attention_heads=6),
    "swin": _configured("SwinConfig SwinModel", "last_hidden_state", image(224), depths=[2, 2, 2, 2]),
    "swinv2": _configured("Swinv2Config Swinv2Model", "last_hidden_state", image(256), depths=[2, 2, 2, 2],
                          image_size=256, window_size=8),
    "beit": _configured("BeitConfig BeitModel", "last_hidden_state", image(224), **_SMALL),
    "mobilevit": _configured("MobileViTConfig MobileViTModel", "pooler_output", image(256)),
    "mobilenet_v2_tf": _configured("MobileNetV2Config MobileNetV2Model", "pooler_output", image(224)),
    "efficientnet_b0_tf": _configured("EfficientNetConfig EfficientNetModel", "pooler_output", image(224),
                                      image_size=224, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280),
    "regnet": _configured("RegNetConfig RegNetModel", "pooler_output", image(224), embedding_size=32,
                          hidden_sizes=[48, 120, 336, 888], depths=[2, 4, 11, 1], groups_width=24),
    "poolformer": _configured("PoolFormerConfig PoolFormerModel", "last_hidden_state", image(224), depths=[2, 2, 4, 2]),
    "pvt": _configured("PvtConfig PvtModel", "last_hidden_state", image(224)),
    "levit": _configured("LevitConfig LevitModel", "pooler_output", image(224)),
    "cvt": _configured("CvtConfig CvtModel", "last_hidden_state", image(224), depth=[1, 2, 4]),
    "convnext_v2": _configured("ConvNextV2Config ConvNextV2Model", "pooler_output", image(224), depths=[2, 2, 4, 2]),
    "focalnet": _configured("FocalNetConfig FocalNetModel", "last_hidden_state", image(224)),
    "bit": _configured("BitConfig BitModel", "pooler_output", image(224), depths=[2, 2, 2, 2]),
    "yolos": _configured("YolosConfig YolosForObjectDetection", "logits", image(256), hidden_size=192,
                         num_hidden_layers=6, num_attention_heads=3, intermediate_size=768, image_size=[256, 256],
                         num_detection_tokens=100),
    "detr_r18": _configured("DetrConfig DetrForObjectDetection", "logits", image(320), use_timm_backbone=False,
                            use_pretrained_backbone=False, backbone=None,
                            backbone_config=("ResNetConfig", {**_RESNET18, "out_features": ["stage4"]}),
                            encoder_layers=3, decoder_layers=3, encoder_ffn_dim=1024, decoder_ffn_dim=1024),
    "rtdetr_r18": _configured("RTDetrConfig RTDetrForObjectDetection", "logits", image(320), decoder_layers=3,
                              encoder_in_channels=[128, 256, 512], backbone_config=("RTDetrResNetConfig", {**_RESNET18,
                              "out_features": list(_PYRAMID[1:])})),
    "depth_anything_s": _configured(
        "DepthAnythingConfig DepthAnythingForDepthEstimation", "predicted_depth", image(252), patch_size=14,
        reassemble_hidden_size=384, neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=64,
        backbone_config=("Dinov2Config", {
            "hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "image_size": 518,
            "out_features": list(_PYRAMID), "reshape_hidden_states": False, "apply_layernorm": True,
        }),
    ),
    "dpt": _configured("DPTConfig DPTForDepthEstimation", "predicted_depth", image(224), image_size=224,
                       neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=64,
                       **{**_SMALL, "num_hidden_layers": 12}),
    "glpn": _configured("GLPNConfig GLPNForDepthEstimation", "predicted_depth", image(256)),
    "sam_encoder": _configured("SamConfig SamModel", "last_hidden_state", image(512), part="vision_encoder",
                               vision_config=("SamVisionConfig", {
                                   "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "mlp_dim": 768,
                                   "global_attn_indexes": [1, 3], "image_size": 512, "output_channels": 128,
                               })),
    "swin2sr": _configured("Swin2SRConfig Swin2SRForImageSuperResolution", "reconstruction", image(64), image_size=64,
                           embed_dim=60, depths=[2, 2], num_heads=[6, 6], upscale=2),
    # sound
    "whisper_encoder_tiny": _configured("WhisperConfig WhisperModel", "last_hidden_state",
                                        _sound("input_features", 80, 3000), part="encoder", encoder_layers=2,
                                        decoder_layers=2, d_model=384, encoder_attention_heads=6, encoder_ffn_dim=1536),
    "wav2vec2": _configured("Wav2Vec2Config Wav2Vec2ForCTC", "logits", _sound("input_values", 16000), **_SMALL),
    "ast": _configured("ASTConfig ASTForAudioClassification", "logits", _sound("input_values", 256, 128),
                       max_length=256, **_SMALL),
    "hifigan": _configured("SpeechT5HifiGanConfig SpeechT5HifiGan", "", _sound("spectrogram", 40, 80),
                           upsample_initial_channel=128),
    "encodec": _configured("EncodecConfig EncodecModel", "", _sound("hidden_states", 1, 12000), part="encoder"),
}  # fmt: skip
