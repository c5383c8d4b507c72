#!/usr/bin/env python3
"""Makes tests/lora: adapters as PEFT writes them, and what PEFT computes with them.

Needs: Python 3.11, `pip install -r scripts/requirements-hf.txt peft`

The base models are folders of tests/hf, written out anew. For each case PEFT makes an adapter, its
matrices are filled from a seed (PEFT begins with zeros, which would prove nothing), it is saved with
`save_pretrained`, and the logits of the tokens of the base are computed with the adapter at work
(float32, one thread, nothing merged).
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1")

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from hf_folder import write_folder

ROOT = Path(__file__).resolve().parent.parent / "tests"
CASES = {
    # name: base folder, options of the adapter
    "llama": ("llama", {
        "r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "embed_tokens", "lm_head"],
        "rank_pattern": {"k_proj": 2}, "alpha_pattern": {r"layers\.1\.self_attn\.q_proj": 3},
    }),
    "gpt2": ("gpt2", {"r": 3, "lora_alpha": 4, "use_rslora": True, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
}


def one(name, base, options, place):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        golden = json.loads((ROOT / "hf" / base / "tensors.json").read_text())
        write_folder(golden, (ROOT / "hf" / base / "config.json").read_bytes(), folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **options)).eval()
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for key, value in model.named_parameters():
                if "lora_" in key:
                    value.copy_(torch.randn(value.shape, generator=generator) * 0.2)
            logits = model(torch.tensor([golden["tokens"]])).logits[0].numpy()
            with model.disable_adapter():
                without = model(torch.tensor([golden["tokens"]])).logits[0].numpy()
        effect = float(((logits - without) ** 2).sum() / (without**2).sum())
        assert effect > 1e-2, effect
        saved = folder / "adapter"
        model.save_pretrained(saved, save_embedding_layers=False)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(saved / file, place / file)
        config = json.loads((place / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = f"tests/hf/{base}"
        (place / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        np.save(place / "logits.npy", logits.astype(np.float32))
        print(name, "effect", f"{effect:.1e}", sum(f.stat().st_size for f in place.iterdir()), "bytes")


def main():
    torch.set_num_threads(1)
    for name, (base, options) in CASES.items():
        one(name, base, options, ROOT / "lora" / name)


if __name__ == "__main__":
    main()
