"""Models for speculative decoding without a GPU: targets, and drafts that are right now and then.

No draft is trained. Kinds of draft:

- a copy of the target with noise in it, which often agrees;
- heads for EAGLE, EAGLE3, DFLASH and DSPARK over a random Llama. The heads know only the last
  token, and the Llama's next token depends mostly on it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from support.models.tiny_model import BOS, EOS, VOCAB_SIZE

_MATRIX = 2
#: Noise in the draft model's weights, as a part of the standard deviation of each weight matrix.
NOISE = 0.3
#: Standard deviation of the Llama's weights; 1 for its embeddings. Small enough that the next token
#: depends on the newest token, and large enough that it depends on the others as well.
NARROW = 0.06
HIDDEN = 64
LAYERS = 6
#: The default, [2, n // 2, n - 3], names one layer twice at 6.
EAGLE3_LAYERS = (1, 3, 4)
#: Layers whose states the drafters of blocks read, and number of tokens of a block.
BLOCK_LAYERS = (1, 4)
BLOCK = 6


def make_noisy(target: Path, directory: Path) -> Path:
    """Write a copy of the target with noise into ``directory``, and return it."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(target, directory, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(5)
    weights = load_file(directory / "model.safetensors")
    for name, weight in weights.items():
        if weight.dim() == _MATRIX and ".h." in name:
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(NOISE * weight.std() * noise)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def make_llama(directory: Path, tokenizer: Path) -> Path:
    """Write a random Llama into ``directory``, with the tokenizer of another, and return it."""
    import torch
    from transformers import LlamaForCausalLM

    generator = torch.Generator().manual_seed(11)
    model: Any = LlamaForCausalLM(_config(LAYERS))  # type: ignore[no-untyped-call]
    for name, weight in model.named_parameters():
        if weight.dim() == _MATRIX:
            std = 1.0 if "embed" in name or "lm_head" in name else NARROW
            torch.nn.init.normal_(weight, std=std, generator=generator)
    model.save_pretrained(directory)
    _copy_tokenizer(tokenizer, directory)
    return directory


def make_eagle(target: Path, directory: Path) -> Path:
    """Write an EAGLE head for that Llama into ``directory``, and return it.

    Its hidden state is nearly the embedding of the newest token.
    """
    import torch

    eye = torch.eye(HIDDEN)
    weights = _weights(target)
    head = {
        name.removeprefix("model."): weight * (1 if weight.dim() == 1 else 0.3)
        for name, weight in weights.items()
        if ".layers.0." in name and "input_layernorm" not in name
    }
    head["fc.weight"] = torch.cat((eye, 0.05 * eye), 1)
    head["fc.bias"] = torch.zeros(HIDDEN)
    head["embed_tokens.weight"] = weights["model.embed_tokens.weight"]
    return _write(head, directory, "LlamaForCausalLMEagle", target)


def make_eagle3(target: Path, directory: Path) -> Path:
    """Write an EAGLE3 head for that Llama into ``directory``, and return it.

    Its hidden state is nearly the embedding of the newest token: each token attends to itself, and
    what it finds there outweighs the mean of three layers, which knows of older tokens only.
    """
    import torch

    eye = torch.eye(HIDDEN)
    weights = _weights(target)
    own = torch.cat((eye, torch.zeros_like(eye)), 1)
    head = {
        name.replace("model.layers.0.", "midlayer."): weight * (1 if weight.dim() == 1 else 0.3)
        for name, weight in weights.items()
        if name.startswith("model.layers.0.") and "self_attn" not in name
    }
    for name, scale in (("q", 1.5), ("k", 1.5), ("v", 4.0)):
        head[f"midlayer.self_attn.{name}_proj.weight"] = scale * own
    head["midlayer.self_attn.o_proj.weight"] = eye
    head["midlayer.hidden_norm.weight"] = torch.ones(HIDDEN)
    head["norm.weight"] = torch.ones(HIDDEN)
    head["fc.weight"] = torch.cat((eye, eye, eye), 1) / 3
    # Softer than the target: between a token of probability 1 and its child, SGLang's choice of
    # the best nodes may take only the child.
    head["lm_head.weight"] = 0.3 * weights["lm_head.weight"]
    head["embed_tokens.weight"] = weights["model.embed_tokens.weight"]
    return _write(
        head,
        directory,
        "LlamaForCausalLMEagle3",
        target,
        draft_vocab_size=VOCAB_SIZE,
        num_key_value_heads=4,
        eagle_config={"eagle_aux_hidden_state_layer_ids": EAGLE3_LAYERS},
    )


def make_dflash(target: Path, directory: Path) -> Path:
    """Write a DFLASH head for that Llama into ``directory``, and return it.

    It drafts a block at once, so it cannot follow its own tokens without being trained: it has a
    table of the Llama's next token after each token.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from support.cpu.chains import BIGRAM

    own = {"target_layer_ids": [*BLOCK_LAYERS], "mask_token_id": VOCAB_SIZE - 1}
    more = {"num_target_layers": LAYERS, "block_size": BLOCK, "dflash_config": own}
    _write(_block_weights(target), directory, "DFlashDraftModel", target, **more)
    model = AutoModelForCausalLM.from_pretrained(target)
    with torch.inference_mode():
        follows = model(torch.arange(VOCAB_SIZE)[:, None]).logits[:, -1].argmax(-1)
    (directory / BIGRAM).write_text(json.dumps(follows.tolist()))
    return directory


def make_dspark(target: Path, directory: Path) -> Path:
    """Write a DSPARK head for that Llama into ``directory``, and return it.

    Its Markov head knows what mostly follows a token.
    """
    import torch

    weights = _weights(target)
    embed = weights["model.embed_tokens.weight"]
    head = _block_weights(target) | {
        "markov_head.markov_w1.weight": 3 * embed / embed.pow(2).mean(1, keepdim=True).sqrt(),
        "markov_head.markov_w2.weight": weights["lm_head.weight"],
        "confidence_head.proj.weight": torch.zeros(1, 2 * HIDDEN),
        "confidence_head.proj.bias": torch.zeros(1),
    }
    return _write(
        head,
        directory,
        "DSparkDraftModel",
        target,
        num_target_layers=LAYERS,
        block_size=BLOCK - 1,
        markov_rank=HIDDEN,
        markov_head_type="vanilla",
        mask_token_id=VOCAB_SIZE - 1,
        target_layer_ids=[*BLOCK_LAYERS],
        enable_confidence_head=True,
    )


def _block_weights(target: Path) -> dict[str, Any]:
    """Return the target's first layer as the layer of a draft that reads the target's states."""
    import torch

    eye = torch.eye(HIDDEN)
    layer = {
        name.removeprefix("model."): weight
        for name, weight in _weights(target).items()
        if name.startswith("model.layers.0.")
    }
    norms = {f"layers.0.self_attn.{name}.weight": torch.ones(16) for name in ("q_norm", "k_norm")}
    ends = {name: torch.ones(HIDDEN) for name in ("hidden_norm.weight", "norm.weight")}
    return {**layer, **norms, **ends, "fc.weight": torch.cat((eye, eye), 1) / 2}


def _config(layers: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        num_hidden_layers=layers,
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        bos_token_id=BOS,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )


def _weights(target: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(target / "model.safetensors")


def _write(
    weights: dict[str, Any], directory: Path, architecture: str, target: Path, **more: Any
) -> Path:
    from safetensors.torch import save_file

    directory.mkdir(exist_ok=True)
    own = {name: weight.clone().contiguous() for name, weight in weights.items()}
    save_file(own, directory / "model.safetensors", metadata={"format": "pt"})
    config = _config(1).to_dict() | {"architectures": [architecture], "dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(config | more, default=str))
    _copy_tokenizer(target, directory)
    return directory


def _copy_tokenizer(source: Path, directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, directory)


def make_all(directory: Path, tiny: Path) -> dict[str, Path]:
    """Write every model into a folder of its own, and return them by name.

    Args:
        directory: The folder to write to.
        tiny: The model of :mod:`support.models.tiny_model`.
    """
    llama = make_llama(directory / "llama", tiny)
    return {
        "noisy": make_noisy(tiny, directory / "noisy"),
        "llama": llama,
        "eagle": make_eagle(llama, directory / "eagle"),
        "eagle3": make_eagle3(llama, directory / "eagle3"),
        "dflash": make_dflash(llama, directory / "dflash"),
        "dspark": make_dspark(llama, directory / "dspark"),
    }
