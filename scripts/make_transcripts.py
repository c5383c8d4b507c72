"""Makes tests/media/transcripts: a tiny model of transcripts with random weights, and the transcripts that it gives by the rules of
openai/whisper, with the features, the logits, the rules of timestamps and the cuts of transformers.

Usage: make_transcripts.py [FOLDER]. Needs the packages of requirements-hf.txt.
"""

import json
import pathlib
import sys
import zlib

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/media/transcripts")
folder.mkdir(parents=True, exist_ok=True)

SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
           "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
SECONDS = 2
TIMES = [f"<|{i * 0.02:.2f}|>" for i in range(SECONDS * 50 + 1)]
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {letter: i for i, letter in enumerate(letters)}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(SPECIAL + TIMES)
END, START, EN, DE, TRANSLATE, TRANSCRIBE, _, PREVIOUS, NO_SPEECH, NO_TIMES = [tokenizer.token_to_id(t) for t in SPECIAL]
FIRST = tokenizer.token_to_id(TIMES[0])
shown = set("abcdefghijklmnopqrstuvwxyz")
kept = [vocabulary[letter] for letter in letters if letter in shown] + [tokenizer.encode(" ").ids[0]]
suppressed = [i for i in range(len(letters)) if i not in kept]

config = WhisperConfig(
    vocab_size=FIRST + len(TIMES), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=8, max_source_positions=SECONDS * 50,
    max_target_positions=64, bos_token_id=END, eos_token_id=END, pad_token_id=END, decoder_start_token_id=START,
    suppress_tokens=None, begin_suppress_tokens=None,
)
generation = dict(
    is_multilingual=True, suppress_tokens=suppressed, begin_suppress_tokens=[tokenizer.encode(" ").ids[0], END],
    max_initial_timestamp_index=50, no_timestamps_token_id=NO_TIMES, eos_token_id=END,
)
extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=SECONDS)
never = suppressed + [i for i in range(END + 1, FIRST)]

# A chirp of triangles whose loudness changes, in integers, so that it is the same everywhere.
def sound(n):
    return np.array([(abs((i * i // 4000 + 37 * i) % 256 - 128) - 64) * 60 * (i // 4000 % 5 + 1) for i in range(n)], np.int16)


def window_of(samples, seek):
    """The features of the window at a frame: of a sound that fits into one, as it is prepared; else a part of the whole sound's."""
    window = SECONDS * 16000
    audio = samples.astype(np.float32) / 32768
    if len(audio) <= window and seek == 0:
        return extractor(audio, sampling_rate=16000, return_tensors="pt").input_features
    audio = np.concatenate([audio, np.zeros(window, np.float32)])
    whole = extractor(audio, sampling_rate=16000, truncation=False, padding="longest", return_tensors="pt").input_features
    return whole[:, :, seek : seek + SECONDS * 100]


def logits(model, encoded, ids):
    return model(encoder_outputs=(encoded,), decoder_input_ids=torch.tensor([ids])).logits[0, -1]


def transcript(model, samples, task, language=None, prompt=None):
    """The windows and segments, or None where a text is not accepted at temperature 0."""
    n_window = SECONDS * 100
    n_frames, seek, windows, segments = len(samples) // 160, 0, [], []
    before = tokenizer.encode(" " + prompt).ids if prompt else []
    half = config.max_target_positions // 2
    rules = WhisperTimeStampLogitsProcessor(GenerationConfig(**generation), begin_index=0)
    while seek < n_frames:
        part = window_of(samples, seek)
        n = min(n_window, n_frames - seek)
        encoded = model.model.encoder(part).last_hidden_state
        if language is None:
            scores = logits(model, encoded, [START])
            language = EN if scores[EN] >= scores[DE] else DE
        ids = ([PREVIOUS] + before[-(half - 1) :] if before else []) + [START]
        no_speech = logits(model, encoded, ids).softmax(-1)[NO_SPEECH].item()
        ids += [language, task]
        rules.begin_index, tokens, total = len(ids), [], 0.0
        while len(tokens) < half and len(ids) + len(tokens) < config.max_target_positions:
            scores = logits(model, encoded, ids + tokens).clone()
            scores[never] = -torch.inf
            if not tokens:
                scores[generation["begin_suppress_tokens"]] = -torch.inf
            scores = rules(torch.tensor([ids + tokens]), scores[None])[0]
            best = int(scores.argmax())
            total += scores.log_softmax(-1)[best].item()
            top = scores.topk(2).values
            if top[0] - top[1] < 0.02:
                return None
            if best == END:
                break
            tokens.append(best)
        mean = total / (len(tokens) + 1)
        text = bytes(tokenizer.decode([t for t in tokens if t < END]).strip(), "utf8")
        ratio = len(text) / len(zlib.compress(text))
        if mean < -0.95 or ratio > 2.3 or no_speech > 0.5 or best != END:
            return None
        # An output of a single sequence; the last token ends it.
        found, step = WhisperForConditionalGeneration._retrieve_segment(
            seek_sequence=torch.tensor(tokens), seek_outputs=[torch.tensor(tokens)], time_offset=torch.tensor([seek / 100], dtype=torch.float64),
            timestamp_begin=FIRST, seek_num_frames=torch.tensor([n]), time_precision=0.02, time_precision_features=0.01, input_stride=2,
            prev_idx=0, idx=0, return_token_timestamps=False, decoder_input_ids=torch.tensor([ids]),
        )
        step = int(step)
        windows.append(dict(seek=seek, tokens=tokens, avg_logprob=mean, no_speech_prob=no_speech, compression_ratio=ratio))
        for one in found:
            own = one["tokens"].tolist()
            # The begin of the next segment marks that this one is complete; it is no part of it.
            if len(own) > 1 and own[-1] >= FIRST and own[-2] >= FIRST:
                own.pop()
            text = tokenizer.decode([t for t in own if t < END])
            start, end = float(one["start"]), float(one["end"])
            if text.strip() and end > start:
                segments.append(dict(seek=seek, start=start, end=end, text=text, tokens=own))
                before += own
        if step <= 0:
            return None
        seek += step
    return dict(language="english" if language == EN else "german", windows=windows, segments=segments)


CASES = {
    "long": (116_800, TRANSCRIBE, None, None), "short": (20_000, TRANSCRIBE, None, None), "prompted": (60_000, TRANSCRIBE, None, "the sea"),
    "translated": (60_000, TRANSLATE, DE, None),
}


def made(seed):
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.dim() > 1:
                values.normal_(0, 0.35 if "embed" not in name else 0.6)
        model.model.decoder.embed_tokens.weight.normal_(0, 0.9)
        model.model.decoder.layer_norm.weight.fill_(1.3)
        # The end is likely enough to come.
        model.model.decoder.embed_tokens.weight[END] *= 1.5
    return model


if __name__ == "__main__":
    best = 0
    with torch.no_grad():
        for seed in range(int(sys.argv[2]) if len(sys.argv) > 2 else 0, 10**4):
            model, results = made(seed), {}
            for name, (n, task, language, prompt) in CASES.items():
                result = transcript(model, sound(n), task, language, prompt)
                if result is None:
                    break
                results[name] = result
            if len(results) > best:
                best = len(results)
                print("seed", seed, best, file=sys.stderr, flush=True)
            if len(results) == len(CASES) and len(results["long"]["segments"]) > 3 and all(r["segments"] for r in results.values()):
                break
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    extractor.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="WhisperTokenizer", eos_token="<|endoftext|>", bos_token="<|endoftext|>")))
    for name, result in results.items():
        result["samples"] = CASES[name][0]
    (folder / "expected.json").write_text(json.dumps(results, indent=1))
    print("seed", seed, {name: (len(r["windows"]), len(r["segments"])) for name, r in results.items()})
