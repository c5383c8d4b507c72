#!/usr/bin/env python3
"""Makes the tiny multimodal folders of tests/media and what transformers computes from them.

Needs: Python 3.11, `pip install -r scripts/requirements-hf.txt`, pillow and torchvision

tests/media/NAME/ holds a folder as transformers saves it, without its weights: tensors.json names them, and they are filled as
scripts/make_hf_goldens.py says. Its pictures and sounds stand in tests/media/inputs, in sizes that no processor changes.
A folder has two prompts, whose texts are the same and whose media are exchanged. prompts.json has their messages and their token ids.
logits.npy and other.npy are the logits of all tokens of the first and of the second, float32 [n_tokens, n_vocab], computed in float32
on one thread with plain attention. A case whose logits cannot tell right from wrong fails, by the measures of make_hf_goldens.py.
"""

import argparse
import json
import tempfile
import warnings
import wave
from pathlib import Path

import make_hf_goldens as hf  # sets the environment of torch
import numpy as np
from bench_server import Failure, program
from goldens import SAME_NMSE, each, nmse

MEDIA = Path(__file__).resolve().parent.parent / "tests" / "media"
INPUTS = MEDIA / "inputs"
# What one folder may take in the repository.
BUDGET = 100_000
# Media that change the logits by less would show nothing.
EFFECT = 1e-2

CHARACTERS = " ?.,:\nabcdefghijklmnopqrstuvwxyzADEIHNPSTUWR"


# ---------------------------------------------------------------- pictures and sounds


def picture(height, width, kind):
    """uint8 [height, width, 3], of integers, so that it is the same everywhere."""
    y, x = np.mgrid[:height, :width].astype(np.int64)
    channels = [(y * y * (3 + 4 * kind) + x * (7 + i) * (1 + 5 * kind) + x * y * (i + kind)) % 251 for i in range(3)]
    return np.stack(channels, -1).astype(np.uint8)


def samples(kind):
    """int16 [6400]: 0.4 s of triangles whose pitch and loudness change."""
    i = np.arange(6400, dtype=np.int64)
    values = (abs((i * i // (900 + 1400 * kind) + 37 * i) % 256 - 128) - 64) * 60 * (i // 1600 % 3 + 1 + kind)
    return values.astype(np.int16)


def write_inputs():
    from PIL import Image

    INPUTS.mkdir(exist_ok=True)
    for kind, name in enumerate("ab"):
        for size, (height, width) in {"wide": (24, 40), "square": (28, 28)}.items():
            Image.fromarray(picture(height, width, kind)).save(INPUTS / f"{size}-{name}.png", optimize=True)
        with wave.open(str(INPUTS / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes(samples(kind).astype("<i2").tobytes())


# ---------------------------------------------------------------- folders


def tokenizer(special):
    """One token for each character, after the special ones."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = [pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(c)[0][0] for c in CHARACTERS]
    vocabulary = {text: i for i, text in enumerate([*special, *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special)
    names = {key: text for key, text in zip(("pad_token", "eos_token"), special)}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=256, **names)


def template(begin, turn, image="", audio="", add=""):
    """A chat template: what is before all, before each message, for each medium, and before the answer."""
    part = f"{{% if p['type'] == 'text' %}}{{{{ p['text'] }}}}{{% elif p['type'] == 'image' %}}{image}{{% else %}}{audio}{{% endif %}}"
    parts = f"{{% for p in m['content'] %}}{part}{{% endfor %}}"
    return f"{begin}{{% for m in messages %}}{turn}{parts}\n{{% endfor %}}{{% if add_generation_prompt %}}{add}{{% endif %}}"


QWEN = ["<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
QWEN_TEMPLATE = template("", "<|im_start|>user\n", "<|vision_start|><|image_pad|><|vision_end|>", add="<|im_start|>")
SIZES = {"shortest_edge": 64, "longest_edge": 4096}
QWEN_PICTURES = dict(patch_size=4, merge_size=2, temporal_patch_size=2, size=SIZES)
TEXT = dict(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            max_position_embeddings=256)  # fmt: skip
PICTURES = [["wide-a.png", "wide-b.png"], ["wide-b.png", "wide-a.png"]]
SQUARES = [["square-a.png", "square-b.png"], ["square-b.png", "square-a.png"]]


def rope(section, base, **more):
    return {"rope_type": "default", "rope_theta": base, "mrope_section": section, **more}


def llava(tf, ids):
    vision = dict(model_type="clip_vision_model", hidden_size=16, intermediate_size=24, num_hidden_layers=3,
                  num_attention_heads=2, image_size=28, patch_size=7, projection_dim=16)  # fmt: skip
    text = dict(TEXT, model_type="llama", vocab_size=len(ids), head_dim=16)
    config = dict(image_token_index=ids["<image>"], vision_feature_layer=-2, vision_feature_select_strategy="default",
                  image_seq_length=16, vision_config=vision, text_config=text)  # fmt: skip
    pictures = tf.CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    return config, dict(image_processor=pictures, patch_size=7, vision_feature_select_strategy="default",
                        image_token="<image>", num_additional_image_tokens=1)  # fmt: skip


def qwen3vl(tf, ids):
    vision = dict(hidden_size=16, intermediate_size=24, depth=2, num_heads=2, patch_size=4, spatial_merge_size=2,
                  temporal_patch_size=2, num_position_embeddings=16, deepstack_visual_indexes=[0], out_hidden_size=32)  # fmt: skip
    text = dict(TEXT, head_dim=16, vocab_size=len(ids), rope_parameters=rope([4, 2, 2], 5e4, mrope_interleaved=True))
    config = dict(of_qwen(ids), vision_config=vision, text_config=text)
    return config, dict(image_processor=tf.Qwen2VLImageProcessor(**QWEN_PICTURES),
                        video_processor=tf.Qwen3VLVideoProcessor(**QWEN_PICTURES))  # fmt: skip


def of_qwen(ids):
    return dict(image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
                vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"])  # fmt: skip


def qwen25vl(tf, ids):
    # Windows of 2 x 2 rows over pictures of 3 x 5.
    vision = dict(hidden_size=16, intermediate_size=24, depth=2, num_heads=2, patch_size=4, spatial_merge_size=2,
                  temporal_patch_size=2, window_size=16, fullatt_block_indexes=[1], out_hidden_size=32)  # fmt: skip
    text = dict(TEXT, vocab_size=len(ids), rope_parameters=rope([2, 3, 3], 1e4), bos_token_id=None, eos_token_id=1)
    config = dict(of_qwen(ids), vision_config=vision, text_config=text)
    return config, dict(image_processor=tf.Qwen2VLImageProcessor(**QWEN_PICTURES),
                        video_processor=tf.Qwen2VLVideoProcessor(**QWEN_PICTURES))  # fmt: skip


def ernie(tf, ids):
    vision = dict(hidden_size=16, intermediate_size=24, depth=2, num_heads=2, patch_size=4, spatial_merge_size=2, temporal_merge_size=2)
    text = dict(TEXT, vocab_size=len(ids), moe_intermediate_size=[16, 24], moe_num_experts=4, moe_k=2, moe_num_shared_experts=1,
                mlp_layer_types=["dense", "sparse"], rope_parameters=rope([3, 3, 2], 1e4))  # fmt: skip
    names = dict(image_start_token_id="IMAGE_START", image_end_token_id="IMAGE_END", image_token_id="IMAGE_PLACEHOLDER",
                 video_start_token_id="VIDEO_START", video_end_token_id="VIDEO_END", video_token_id="VIDEO_PLACEHOLDER")  # fmt: skip
    config = {key: ids[f"<|{name}|>"] for key, name in names.items()}
    sizes = dict(patch_size=4, merge_size=2, size=SIZES)
    return dict(config, vision_config=vision, text_config=text), dict(
        image_processor=tf.Ernie4_5_VLMoeImageProcessor(**sizes), video_processor=tf.Ernie4_5_VLMoeVideoProcessor(**sizes, draw_on_frames=False)
    )


ERNIE = ["<unk>", "</s>", "<s>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>", "<|VIDEO_PLACEHOLDER|>",
         "<|VIDEO_START|>", "<|VIDEO_END|>"]  # fmt: skip


def gemma3(tf, ids):
    vision = dict(model_type="siglip_vision_model", hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                  num_attention_heads=2, image_size=28, patch_size=7, vision_use_head=False)  # fmt: skip
    text = dict(TEXT, head_dim=16, vocab_size=len(ids), num_hidden_layers=3, sliding_window=7, query_pre_attn_scalar=16,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"])  # fmt: skip
    config = dict(boi_token_index=ids["<start_of_image>"], eoi_token_index=ids["<end_of_image>"],
                  image_token_index=ids["<image_soft_token>"], mm_tokens_per_image=4, vision_config=vision, text_config=text)  # fmt: skip
    pictures = tf.Gemma3ImageProcessor(size={"height": 28, "width": 28}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return config, dict(image_processor=pictures, image_seq_length=4)


def qwen2_audio(tf, ids):
    audio = dict(d_model=16, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=24, num_mel_bins=16, max_source_positions=50)
    text = dict(TEXT, model_type="qwen2", vocab_size=len(ids))
    config = dict(audio_token_index=ids["<|AUDIO|>"], audio_config=audio, text_config=text)
    return config, dict(feature_extractor=tf.WhisperFeatureExtractor(feature_size=16, chunk_length=1))


AUDIO = ["<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
# Where a key has a bias, each query adds the same to all of its scores.
SAME_FOR_ALL_KEYS = [r"(k_proj|self_attn\.k)\.bias$"]

CASES = [
    dict(name="llava", model="LlavaForConditionalGeneration", config="LlavaConfig", processor="LlavaProcessor", make=llava,
         special=["<unk>", "</s>", "<s>", "<image>"], template=template("<s>", "USER: ", "<image>\n", add="A:"), media=SQUARES,
         # The last layer and the norm after it are not computed. The names are those of published folders.
         rename=[[r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model."]],
         silent=[*SAME_FOR_ALL_KEYS, r"vision_tower.*\.layers\.2\.", r"post_layernorm"]),
    dict(name="qwen3-vl", model="Qwen3VLForConditionalGeneration", config="Qwen3VLConfig", processor="Qwen3VLProcessor",
         make=qwen3vl, special=QWEN, template=QWEN_TEMPLATE, media=PICTURES, silent=SAME_FOR_ALL_KEYS),
    dict(name="ernie4.5-vl", model="Ernie4_5_VLMoeForConditionalGeneration", config="Ernie4_5_VLMoeConfig",
         processor="Ernie4_5_VLMoeProcessor", make=ernie, special=ERNIE, media=PICTURES, silent=SAME_FOR_ALL_KEYS,
         template=template("<s>", "USER: ", "Picture:<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", add="A:")),
    dict(name="gemma3", model="Gemma3ForConditionalGeneration", config="Gemma3Config", processor="Gemma3Processor", make=gemma3,
         special=["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"],
         template=template("<bos>", "<start_of_turn>user\n", "<start_of_image>", add="<start_of_turn>"), media=SQUARES,
         silent=SAME_FOR_ALL_KEYS),
    dict(name="qwen2.5-vl", model="Qwen2_5_VLForConditionalGeneration", config="Qwen2_5_VLConfig", processor="Qwen2_5_VLProcessor",
         make=qwen25vl, special=QWEN, template=QWEN_TEMPLATE, media=PICTURES, silent=SAME_FOR_ALL_KEYS),
    dict(name="qwen2-audio", model="Qwen2AudioForConditionalGeneration", config="Qwen2AudioConfig", processor="Qwen2AudioProcessor",
         make=qwen2_audio, special=AUDIO, media=[["a.wav", "b.wav"], ["b.wav", "a.wav"]], silent=SAME_FOR_ALL_KEYS,
         template=template("", "<|im_start|>user\n", audio="<|audio_bos|><|AUDIO|><|audio_eos|>\n", add="<|im_start|>")),
]  # fmt: skip


def of_case(case, folder):
    """The processor of a case, saved in a folder, and the case as make_hf_goldens.py has it."""
    import transformers

    words = tokenizer(case["special"])
    ids = words.get_vocab()
    config, parts = case["make"](transformers, ids)
    for key, name in (("image_token", "<image_soft_token>"), ("boi_token", "<start_of_image>"), ("eoi_token", "<end_of_image>"),
                      ("image_token", "<|IMAGE_PLACEHOLDER|>"), ("image_start_token", "<|IMAGE_START|>"),
                      ("image_end_token", "<|IMAGE_END|>"), ("video_token", "<|VIDEO_PLACEHOLDER|>"),
                      ("video_start_token", "<|VIDEO_START|>"), ("video_end_token", "<|VIDEO_END|>")):  # fmt: skip
        if name in ids:
            setattr(words, key, name)
            setattr(words, f"{key}_id", ids[name])
            words.init_kwargs[key] = name
    processor = getattr(transformers, case["processor"])(tokenizer=words, chat_template=case["template"], **parts)
    processor.save_pretrained(folder)
    return processor, case | {"set": config, "tokens": []}


def messages(names):
    kind = "audio" if names[0].endswith(".wav") else "image"
    first, second = ({"type": kind, "path": name} for name in names)
    content = [{"type": "text", "text": "See "}, first, {"type": "text", "text": "and "}, second, {"type": "text", "text": "What?"}]
    return [{"role": "user", "content": content}]


def inputs_of(processor, names):
    """What a model reads of a prompt."""
    from PIL import Image

    said = [{**m, "content": [{k: v for k, v in p.items() if k != "path"} for p in m["content"]]} for m in messages(names)]
    text = processor.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    if names[0].endswith(".wav"):
        sounds = [samples("ab".index(name[0])).astype(np.float32) / 32768 for name in names]
        return dict(processor(text=[text], audio=sounds, sampling_rate=16000, return_tensors="pt"))
    pictures = [Image.open(INPUTS / name) for name in names]
    nested = [pictures] if "Gemma3" in type(processor).__name__ else pictures
    return dict(processor(text=[text], images=nested, return_tensors="pt"))


def compute(case):
    """The files of a case by name, and the arrays."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        processor, case = of_case(case, scratch / "processor")
        results, prompts, entry, config = [], [], None, None
        for names in case["media"]:
            inputs = inputs_of(processor, names)
            tokens = inputs.pop("input_ids")[0].tolist()
            inputs.pop("attention_mask", None)
            own = case | {"tokens": tokens, "inputs": inputs}
            if entry is None:
                entry, config, logits = hf.compute(own, scratch / "model")
            else:
                import torch

                logits = hf.run(hf.load(own, scratch / "model" / "filled", torch.float32), own).astype(np.float32)
            results.append(logits)
            prompts.append({"messages": messages(names), "tokens": tokens})
        if len(prompts[0]["tokens"]) != len(prompts[1]["tokens"]) or (moved := nmse(*results)) < EFFECT:
            raise Failure("the media hardly change the logits")
        files = {path.name: path.read_text() for path in sorted((scratch / "processor").iterdir())}
        files["config.json"] = config.decode()
        files["tensors.json"] = hf.entry_text(entry)
        files["prompts.json"] = json.dumps(prompts, indent=1) + "\n"
        return files, results, f"std {entry['std']} noise {entry['noise']} effect {moved:.1e} {len(tokens)} tokens"


ARRAYS = ("logits.npy", "other.npy")


def one(case, check):
    files, results, about = compute(case)
    place = MEDIA / case["name"]
    changed = [name for name, text in files.items() if not (place / name).exists() or (place / name).read_text() != text]
    for name, logits in zip(ARRAYS, results):
        stored = np.load(place / name) if (place / name).exists() else None
        if stored is None or stored.shape != logits.shape or nmse(logits, stored) > SAME_NMSE:
            changed.append(name)
    if not changed:
        return f"same      {about}"
    if check:
        raise Failure(f"changed: {', '.join(changed)}")
    place.mkdir(exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)
    for name, logits in zip(ARRAYS, results):
        np.save(place / name, logits)
    size = sum(path.stat().st_size for path in place.iterdir())
    if size > BUDGET:
        raise Failure(f"takes {size} bytes, the budget is {BUDGET}")
    return f"written   {about} {size} bytes"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="these cases alone")
    parser.add_argument("--check", action="store_true", help="compare with what is stored and write nothing")
    args = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    write_inputs()
    return 1 if each(CASES, args.only, lambda case: one(case, args.check)) else 0


if __name__ == "__main__":
    program(main)
