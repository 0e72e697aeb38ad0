"""The corpus as rows: what each model is, where it comes from, why it is here, and its tiny variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corpus.models import audio, cnn, decoder, encoder, inception, mobile, recurrent, reparameterised, special, vision
from superopt.ir.graph import Graph

__all__ = ["MODELS", "Model"]


@dataclass(frozen=True)
class Model:
    """One model: ``make(name, **full)`` is the true one, ``make(name, **tiny)`` a small one of the same structure."""

    name: str
    family: str
    make: Callable[..., Graph]
    paper: str
    why: str
    full: Mapping[str, Any] = field(default_factory=dict)
    tiny: Mapping[str, Any] | None = None

    def graph(self) -> Graph:
        """The model at its true size."""
        return self.make(self.name, **self.full)

    def tiny_graph(self) -> Graph:
        """The same structure with few channels, layers and pixels.

        Raises:
            ValueError: the model has no tiny variant.
        """
        if self.tiny is None:
            raise ValueError(f"{self.name} has no tiny variant")
        return self.make(f"tiny_{self.name}", **{**self.full, **self.tiny})


_VGG16 = [(64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3]
_QWEN2 = {"width": 896, "count": 14, "groups": 2, "hidden": 4864, "vocabulary": 32000, "theta": 1e6, "qkv_bias": True}
_TINY_TEXT = {"layers": 2, "width": 32, "count": 4, "vocabulary": 64, "time": 8}
_TINY_LLAMA = {"width": 32, "count": 4, "groups": 2, "hidden": 64, "vocabulary": 64, "time": 8}
_TINY_RESNET = {"depths": (1, 2), "base": 8, "size": 32, "classes": 10}

MODELS: tuple[Model, ...] = (
    # Convolutional, classic.
    Model("resnet18", "cnn", cnn.resnet, "He et al., Deep Residual Learning for Image Recognition, CVPR 2016",
          "basic residual blocks", {"depths": (2, 2, 2, 2), "bottleneck": False}, _TINY_RESNET),
    Model("resnet50", "cnn", cnn.resnet, "He et al., Deep Residual Learning for Image Recognition, CVPR 2016",
          "the usual benchmark network; BatchNorm folding, bottlenecks", {}, _TINY_RESNET | {"group_width": 8}),
    Model("resnext50", "cnn", cnn.resnet, "Xie et al., Aggregated Residual Transformations, CVPR 2017",
          "32 groups of 4 channels: grouped convolutions pay when widened", {"groups": 32, "group_width": 4},
          _TINY_RESNET | {"groups": 4, "group_width": 2}),
    Model("vgg16", "cnn", cnn.vgg, "Simonyan, Zisserman, Very Deep Convolutional Networks, ICLR 2015",
          "plain heavy convolutions and huge Gemms: nothing to find, must not get worse", {"plan": _VGG16},
          {"plan": [(8, 8), (16,)], "hidden": 32, "size": 16, "classes": 10}),
    Model("squeezenet", "cnn", cnn.squeezenet, "Iandola et al., SqueezeNet, arXiv 1602.07360 (version 1.1)",
          "1×1 beside 3×3: enlarging and merging pays on some devices and hurts on others", {},
          {"scale": 2, "size": 64, "classes": 10}),
    Model("densenet121", "cnn", cnn.densenet, "Huang et al., Densely Connected Convolutional Networks, CVPR 2017",
          "BatchNorm before ReLU and convolution; long concatenations", {},
          {"blocks": (2, 3), "growth": 4, "size": 32, "classes": 10}),
    Model("googlenet", "cnn", cnn.googlenet, "Szegedy et al., Going Deeper with Convolutions, CVPR 2015",
          "parallel 1×1 convolutions of one input", {}, {"divide": 8, "size": 64, "classes": 10}),
    Model("inception_v3", "cnn", inception.inception_v3,
          "Szegedy et al., Rethinking the Inception Architecture, CVPR 2016",
          "parallel and factorised convolutions; the classic test of merging", {},
          {"divide": 16, "size": 75, "classes": 10}),
    # Convolutional, efficient.
    Model("mobilenet_v2", "mobile", mobile.mobilenet_v2, "Sandler et al., MobileNetV2, CVPR 2018",
          "depthwise convolutions, ReLU6 as Clip", {}, {"width": 0.1, "depth": 0.5, "size": 32, "classes": 10}),
    Model("mobilenet_v3_small", "mobile", mobile.mobilenet_v3_small,
          "Howard et al., Searching for MobileNetV3, ICCV 2019",
          "squeeze-excite and hard swish", {}, {"blocks": 4, "size": 32, "hidden": 16, "classes": 10}),
    Model("efficientnet_b0", "mobile", mobile.efficientnet, "Tan, Le, EfficientNet, ICML 2019",
          "SiLU written as a product; squeeze-excite everywhere", {},
          {"repeats": (1, 1, 1, 0, 0, 0, 0), "size": 32, "classes": 10}),
    Model("shufflenet_v2", "mobile", mobile.shufflenet_v2, "Ma et al., ShuffleNet V2, ECCV 2018",
          "channel shuffles: reshapes and transposes between cheap convolutions", {},
          {"widths": (8, 16, 32, 32), "depths": (2, 2), "size": 32, "classes": 10}),
    Model("regnet_y", "mobile", mobile.regnet_y, "Radosavovic et al., Designing Network Design Spaces, CVPR 2020",
          "grouped convolutions that must not be widened", {},
          {"widths": (16, 32), "depths": (1, 2), "size": 32, "classes": 10}),
    Model("convnext_tiny", "mobile", mobile.convnext, "Liu et al., A ConvNet for the 2020s, CVPR 2022",
          "transposes around LayerNorm, layer scale to fold", {},
          {"widths": (8, 16), "depths": (1, 2), "size": 32, "classes": 10}),
    Model("nasnet_a", "mobile", mobile.nasnet_a, "Zoph et al., Learning Transferable Architectures, CVPR 2018",
          "irregular cells, equal pools added, a big graph", {}, {"width": 8, "repeats": 1, "size": 32, "classes": 10}),
    # Over-parameterised.
    Model("mobileone_s0", "reparameterised", reparameterised.mobileone, "Vasu et al., MobileOne, CVPR 2023",
          "training form: up to six branches a block collapse into one convolution", {},
          {"widths": (8, 8, 16), "depths": (1, 2), "branches": 2, "size": 32, "classes": 10}),
    Model("repvgg_a0", "reparameterised", reparameterised.repvgg, "Ding et al., RepVGG, CVPR 2021",
          "training form: 3×3, 1×1 and identity collapse into one 3×3", {},
          {"widths": (8, 16), "depths": (1, 2), "size": 32, "classes": 10}),
    Model("expand_conv", "reparameterised", reparameterised.expand_conv, "Guo et al., ExpandNets, NeurIPS 2020",
          "1×1 → 3×3 → 1×1 without activations is one 3×3", {},
          {"width": 8, "ratio": 2, "blocks": 2, "size": 12, "classes": 10}),
    Model("deep_linear", "reparameterised", reparameterised.deep_linear,
          "Saxe et al., Exact solutions to the nonlinear dynamics of learning in deep linear networks, ICLR 2014",
          "a chain of products of weights is one product", {}, {"widths": (16, 24, 24, 24, 8), "rows": 4}),
    Model("lora", "reparameterised", reparameterised.lora, "Hu et al., LoRA, ICLR 2022",
          "unmerged adapters: merging pays, concatenating does not", {},
          {"width": 32, "hidden": 64, "rank": 2, "layers": 2, "time": 8}),
    Model("siamese", "siamese", reparameterised.siamese, "Bromley et al., Signature Verification, NIPS 1993",
          "one tower on two inputs: run once on a batch of both", {}, {"widths": (16, 32, 16, 8)}),
    # Recurrent.
    Model("nasrnn", "rnn", recurrent.nasrnn, "Zoph, Le, Neural Architecture Search, ICLR 2017 (TASO's example)",
          "sixteen products a step with two left operands", {}, {"steps": 3, "hidden": 16}),
    Model("lstm", "rnn", recurrent.lstm, "Hochreiter, Schmidhuber, Long Short-Term Memory, 1997",
          "gates apart: eight products a step", {}, {"steps": 3, "hidden": 16}),
    Model("gru", "rnn", recurrent.gru, "Cho et al., Learning Phrase Representations, EMNLP 2014",
          "a gate inside a product: only some may merge", {}, {"steps": 3, "hidden": 16}),
    # Encoders.
    Model("bert", "encoder", encoder.bert, "Devlin et al., BERT, NAACL 2019",
          "twelve equal layers: repeated regions", {}, _TINY_TEXT),
    Model("bert_2", "encoder", encoder.bert, "Devlin et al., BERT, NAACL 2019", "two layers of the same",
          {"layers": 2}, _TINY_TEXT | {"count": 2}),
    Model("dynamic_bert", "encoder", encoder.bert, "Devlin et al., BERT, NAACL 2019",
          "symbolic batch and sequence length", {"layers": 2, "dynamic": True}, _TINY_TEXT),
    Model("t5_encoder", "encoder", encoder.t5_encoder, "Raffel et al., T5, JMLR 2020",
          "RMS norms, unscaled attention with a position bias", {},
          {"layers": 2, "width": 32, "count": 4, "hidden": 64, "vocabulary": 64, "time": 8}),
    Model("vit_b16", "encoder", encoder.vit, "Dosovitskiy et al., An Image is Worth 16×16 Words, ICLR 2021",
          "only the class token is used at the end", {},
          {"layers": 2, "width": 32, "count": 4, "patch": 8, "size": 32, "classes": 10}),
    Model("mlp_mixer", "encoder", encoder.mlp_mixer, "Tolstikhin et al., MLP-Mixer, NeurIPS 2021",
          "transposes around products", {},
          {"layers": 2, "width": 32, "token_hidden": 16, "hidden": 64, "patch": 8, "size": 32, "classes": 10}),
    Model("whisper_encoder", "audio", encoder.whisper, "Radford et al., Whisper, ICML 2023",
          "long sequence: attention dominates", {}, {"layers": 2, "width": 32, "count": 4, "mels": 8, "time": 16}),
    Model("linear_attention", "encoder", encoder.linear_attention,
          "Katharopoulos et al., Transformers are RNNs, ICML 2020",
          "associativity: (QKᵀ)V against Q(KᵀV)", {}, {"layers": 2, "width": 32, "count": 4, "time": 64}),
    Model("swin_tiny", "encoder", vision.swin, "Liu et al., Swin Transformer, ICCV 2021",
          "windows and rolls: much data movement", {},
          {"width": 16, "depths": (2, 1), "head": 8, "window": 4, "size": 32, "classes": 10}),
    # Decoders.
    Model("gpt2", "decoder", decoder.gpt2, "Radford et al., Language Models are Unsupervised Multitask Learners, 2019",
          "causal decoder, all logits", {}, _TINY_TEXT),
    Model("gpt2_last", "decoder", decoder.gpt2,
          "Radford et al., Language Models are Unsupervised Multitask Learners, 2019 (6 layers: DistilGPT-2)",
          "only the last token's logits are used: the slice moves up", {"layers": 6, "last": True}, _TINY_TEXT),
    Model("llama_2l", "decoder", decoder.llama, "Grattafiori et al., The Llama 3 Herd of Models, 2024",
          "grouped-query attention by repetition, rotary embedding, RMS norm, SwiGLU", {}, _TINY_LLAMA),
    Model("qwen2_2l", "decoder", decoder.llama, "Yang et al., Qwen2 Technical Report, 2024",
          "the same with biases on Q, K, V, at 0.5B's sizes", _QWEN2, _TINY_LLAMA),
    # Dense prediction, audio, and the rest.
    Model("segformer", "dense", vision.segformer, "Xie et al., SegFormer, NeurIPS 2021",
          "linear maps commute with upsampling; a concatenation to remove", {},
          {"widths": (8, 12, 16, 16), "embed": 16, "size": 64, "classes": 5}),
    Model("unet", "dense", vision.unet, "Ronneberger et al., U-Net, MICCAI 2015",
          "skips by concatenation, transposed convolutions", {}, {"base": 4, "depth": 2, "size": 16}),
    Model("ssd_head", "dense", vision.ssd_head, "Liu et al., SSD, ECCV 2016",
          "two convolutions of one input per scale", {},
          {"widths": (16, 16), "sides": (6, 3), "anchors": (2, 2), "classes": 5}),
    Model("yolo_head", "dense", vision.yolo_head,
          "Jocher et al., Ultralytics YOLOv8, 2023; Li et al., GFL, NeurIPS 2020",
          "two branches of one input per scale; distances as expectations", {},
          {"widths": (8, 16), "sides": (8, 4), "classes": 5, "bins": 4}),
    Model("wav2letter", "audio", audio.wav2letter, "Collobert et al., Wav2Letter, arXiv 1609.03193",
          "one-dimensional convolutions, very long kernels", {},
          {"width": 8, "wide": 16, "mels": 8, "time": 100, "symbols": 5}),
    Model("conv_tasnet", "audio", audio.conv_tasnet, "Luo, Mesgarani, Conv-TasNet, TASLP 2019",
          "norms written out, PReLU, two 1×1 convolutions of one input", {},
          {"filters": 16, "bottleneck": 8, "hidden": 16, "blocks": 3, "repeats": 1, "samples": 400}),
    Model("quantised", "quantised", special.quantised, "Jacob et al., Quantization and Training, CVPR 2018",
          "QDQ nodes are carried through", {}, {"widths": (4, 8), "hidden": 16, "size": 16}),
    Model("train_step_mlp", "training", special.train_step_mlp, "Rumelhart et al., Learning representations, 1986",
          "a backward pass and an update as a graph", {}, {"widths": (16, 12, 8, 4), "rows": 6}),
)  # fmt: skip
