#!/usr/bin/env python3
"""Folders without tokenizer.json, each with the tokens that its format's own library makes of texts.

    tokenizer_fixtures.py small OUT            models trained here, a few KB each (tests/it/fixtures/tokenizers)
    tokenizer_fixtures.py large OUT SHARED     the vocabularies of SHARED/golden/tokenizers in other forms

`BENCH_TOKENIZERS=OUT cargo test -p lab-base foreign` compares. Needs sentencepiece, tiktoken, mistral_common, tokenizers, transformers and gguf.
"""
import base64
import io
import json
import random
import sys
import unicodedata
from pathlib import Path

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2 as proto

ROOT = Path(__file__).resolve().parent.parent
MORE = """Où est le café? Éric l'a naïvement déjà vu, señor. Größe, Übung, straße. don't WE'LL it's
Привет, мир! Как дела? Γειά σου κόσμε. 你好,世界。今天天气很好,我们去公园。
日本語のテキストです。カタカナとひらがな。 ＡＢＣ ｱｲｳ ﬁn ½ ①② é
1 12 123 1234 3.14 1,000,000
"""
TEXTS = ["", " ", "  ", "a", " a", "a ", "  a  b  ", "\n", " \n a", "▁", "▁▁a ▁", "a" * 25, "the the  the   the", "<s> </s> <unk>",
         "<sep>x<sep> y <sep>", "<0x0A>", "tensor<sep>", "x <sep>", "ab cd ab  cd", "１２３ ＡＢ", "e\u0301 \u00e9 ﬃ ㌔", "\u3000\u3000a\u3000",
         "zqj🙂🚀x", "a\u0000b", "\u200bx\u200b", "\tz\t", "Hello world, how are you doing today?", "I'll WE'RE they've don't CAN'T it's",
         "1 12 123 1234 12345 3.14", "line\n\nline\r\n\r\n  x", "fn main() {\n    let x = vec![1, 2];\n}", "ÉCOLE École camelCase HTTPServer"]
PARTS = ["the ", "a", "b", " ", "  ", "tensor", "weight", "▁", "<sep>", "é", "e\u0301", "日", "本", "Ａ", "ﬁ", "🙂", "1", "23", "\n", "\t", "\u3000", "==",
         "--", "aaaa", "ss", "ing", "<ctl>", "<s>", "DON'T", "École", "don't"]
BYTE = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"""
REST = r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
TEKKEN = (r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"""
          r"""[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
RULES = "41\t61\n42\t62\n3000\t20\n9\t20\nA\t20\nE9\t65\n65 301\t65\nFB01\t66 69\nFF21\t41\n1F642\t\n"
TRAINED = {
    "unigram_bytes": dict(model_type="unigram", vocab_size=620, byte_fallback=True, normalization_rule_name="identity",
                          remove_extra_whitespaces=False, user_defined_symbols=["<sep>", "▁▁", "ab"], control_symbols=["<ctl>"]),
    "unigram_rules": dict(model_type="unigram", vocab_size=420, rules=True, user_defined_symbols=["<sep>"]),
    "bpe_bytes": dict(model_type="bpe", vocab_size=760, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                      split_digits=True, user_defined_symbols=["<sep>", "▁▁▁▁", "=="], control_symbols=["<ctl>"], pad_id=3,
                      allow_whitespace_only_pieces=True),
    "bpe_rules": dict(model_type="bpe", vocab_size=420, rules=True, treat_whitespace_as_suffix=True, character_coverage=0.981,
                      user_defined_symbols=["<sep>"]),
    "bpe_bare": dict(model_type="bpe", vocab_size=420, add_dummy_prefix=False, bos_id=-1, eos_id=-1, normalization_rule_name="identity"),
}
LARGER = {
    "unigram": dict(model_type="unigram", vocab_size=600),
    "unigram_suffix": dict(model_type="unigram", vocab_size=600, treat_whitespace_as_suffix=True, normalization_rule_name="nmt_nfkc_cf"),
    "unigram_plain": dict(model_type="unigram", vocab_size=600, add_dummy_prefix=False, remove_extra_whitespaces=False,
                          split_by_whitespace=False, character_coverage=0.981),
    "bpe": dict(model_type="bpe", vocab_size=700),
    "bpe_nfkc": dict(model_type="bpe", vocab_size=700, normalization_rule_name="nfkc", add_dummy_prefix=False),
    "chars": dict(model_type="char", vocab_size=120, character_coverage=1.0, hard_vocab_limit=False),
}


def corpus():
    names = ["README.md", "ARCHITECTURE.md", "docs/blocks.md", "docs/maps.md"]
    return "".join((ROOT / name).read_text()[:60000] for name in names) + MORE * 20


def random_texts(count):
    rng = random.Random(7)
    return ["".join(rng.choice(PARTS) for _ in range(rng.randint(1, 24))) for _ in range(count)]


def golden_texts(shared):
    texts = dict.fromkeys(case["text"] for path in sorted((shared / "golden/tokenizers/dev").glob("*.json"))
                          for case in json.loads(path.read_text())["cases"])
    return list(texts)


def write(out, name, files, texts, encode, **flags):
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        data = data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)).encode()
        (folder / file).write_bytes(data)
    cases = [[text, encode(text)] for text in texts]
    (folder / "cases.json").write_text(json.dumps({**flags, "cases": cases}, separators=(",", ":")))
    print(name, len(cases), "cases")


def trained(rules=False, **options):
    """The model of these options, with normalisation rules of its own if there shall be."""
    # The model names the files.
    model, text, own = io.BytesIO(), Path("/tmp/corpus.txt"), Path("/tmp/rules.tsv")
    text.write_text(corpus())
    own.write_text(RULES)
    options |= {"normalization_rule_tsv": str(own)} if rules else {}
    sentencepiece.SentencePieceTrainer.train(input=str(text), model_writer=model, num_threads=1, minloglevel=2,
                                             max_sentence_length=100000, **options)
    return model.getvalue()


def train(out, models, texts):
    for name, options in models.items():
        of_pieces(out, name, trained(**options), texts)


def without_unknown(out, texts):
    """Bytes stand in for the unknown, which no piece does; another piece has the number that it has by default."""
    for kind in ("unigram", "bpe"):
        model = trained(model_type=kind, vocab_size=520, byte_fallback=True, bos_id=-1, eos_id=-1,
                        normalization_rule_name="identity")
        model = proto.ModelProto.FromString(model)
        pieces = sorted((piece for piece in model.pieces if piece.type != 2), key=lambda piece: piece.type == 6)
        del model.pieces[:]
        model.pieces.extend(pieces)
        of_pieces(out, f"{kind}_no_unknown", model.SerializeToString(), texts, **{"tokenizer_config.json": {"add_bos_token": False}})


def renumbered(out, name, config, options, number, texts):
    """A model whose class has other numbers: `number` gives them, and its ends."""
    model = trained(rules=True, **options)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    write(out, name, {"sentencepiece.bpe.model": model, "tokenizer_config.json": config}, texts, lambda text: number(processor.encode(text)), adds=True)


def of_mistral(out, texts):
    """The files that mistral_common carries, each under a name that it has in a folder."""
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    data = Path(mistral_common.__file__).parent / "data"
    for path in sorted(data.glob("*.model.v*")):
        version = path.name.rsplit(".", 1)[1]
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        write(out, f"mistral-{version}", {f"tokenizer.model.{version}": path.read_bytes()}, texts, processor.encode)
    for path in sorted(data.glob("tekken*.json")):
        tekken = Tekkenizer.from_file(path)
        write(out, path.stem, {path.name: path.read_bytes()}, texts, lambda text: tekken.encode(text, bos=True, eos=False), adds=True)


def of_pieces(out, name, model, texts, **more):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    write(out, name, {"tokenizer.model": model, **more}, texts, processor.encode)


def train_ranks(size, pattern):
    """Ranks of byte pairs, by the trainer of the tokenizers library: its merges in order."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    library.train_from_iterator([corpus()], trainer)
    vocab = library.get_vocab()
    return [text for text, _ in sorted(vocab.items(), key=lambda item: item[1])], json.loads(library.to_str())["model"]["merges"]


def letters():
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    shifted = (byte for byte in range(256) if byte not in plain)
    return {chr(byte): byte for byte in plain} | {chr(0x100 + n): byte for n, byte in enumerate(shifted)}


def spelled_bytes(text, table=letters()):
    return bytes(table[c] for c in text)


def of_ranks(out, name, file, ranks, pattern, texts, special=(), **files):
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(ranks))
    special = {text: len(ranks) + n for n, text in enumerate(special)}
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks={token: rank for rank, token in enumerate(ranks)}, special_tokens=special)
    write(out, name, {file: lines, **files}, texts, lambda text: encoding.encode(text, allowed_special="all"), special=True)


def of_tekken(out, name, ranks, texts):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    # The library wants the single bytes first, in their order.
    ranks = [bytes([byte]) for byte in range(256)] + [token for token in ranks if len(token) > 1]
    file = {"config": {"pattern": TEKKEN, "num_vocab_tokens": len(ranks), "default_vocab_size": len(ranks) + 10, "default_num_special_tokens": 10,
                       "version": "v3"},
            "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode(errors="ignore")}
                      for rank, token in enumerate(ranks)],
            "special_tokens": [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(special)]}
    path = out / f"{name}.json"
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(file))
    tekken = Tekkenizer.from_file(path)
    path.unlink()
    write(out, name, {"tekken.json": file}, texts, lambda text: tekken.encode(text, bos=True, eos=False), adds=True)


def of_class(out, name, files, texts, cls, **flags):
    """What transformers makes of the folder; the class reads the files itself."""
    import transformers
    folder = out / name
    write(out, name, files, [], None)
    tokenizer = getattr(transformers, cls).from_pretrained(folder)
    write(out, name, files, texts, lambda text: tokenizer.encode(text, add_special_tokens=True), special=True, adds=True, **flags)


def words():
    seen = dict.fromkeys(word for word in corpus().lower().split() if word.isascii() and word.isalpha() and len(word) < 7)
    characters = sorted(set(corpus().lower()) - set(" \n"))
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *("##" + c for c in characters), *list(seen)[:300]]


def small(out):
    texts = TEXTS + random_texts(60)
    train(out, TRAINED, texts)
    without_unknown(out, texts)
    # As in XLM-R: the three tokens that are not text become four; and in CamemBERT, where one becomes five.
    small_unigram = dict(model_type="unigram", vocab_size=320)
    renumbered(out, "xlmr", {"tokenizer_class": "XLMRobertaTokenizer"}, small_unigram,
               lambda ids: [0, *(id + 1 if id else 3 for id in ids), 2], texts)
    renumbered(out, "camembert", {"tokenizer_class": "CamembertTokenizer"}, small_unigram,
               lambda ids: [5, *(id + 4 if id else 3 for id in ids), 6], texts)
    tokens, merges = train_ranks(480, BYTE + REST)
    ranks = [spelled_bytes(token) for token in tokens]
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205))]
    ranked = [text for text in texts if unicodedata.is_normalized("NFC", text)]
    of_ranks(out, "ranks", "small.tiktoken", ranks, BYTE + REST, ranked, names, **{"tokenizer_config.json": {"tokenizer_class": "QWenTokenizer"}})
    of_tekken(out, "tekken", ranks, texts)
    vocab = {token: n for n, token in enumerate([*tokens, "<|endoftext|>", "<|im_end|>"])}
    lines = "#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in merges)
    files = {"vocab.json": vocab, "merges.txt": lines}
    of_class(out, "merges", {**files, "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}}, texts, "GPT2Tokenizer")
    added = {str(vocab[text]): {"content": text, "special": True, "normalized": False} for text in ["<|endoftext|>", "<|im_end|>"]}
    config = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added}
    of_class(out, "merges_nfc", {**files, "tokenizer_config.json": config}, texts, "Qwen2Tokenizer")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    of_class(out, "words", {"vocab.txt": "\n".join(words()) + "\n", "tokenizer_config.json": config}, texts, "BertTokenizer")


def large(out, shared):
    from gguf import GGUFReader
    texts = golden_texts(shared) + random_texts(400)
    train(out, LARGER | TRAINED, texts)
    of_mistral(out, texts)

    def read(name):
        fields = GGUFReader(shared / f"golden/tokenizers/vocab/ggml-vocab-{name}.gguf").fields
        return lambda key: fields[f"tokenizer.ggml.{key}"].contents() if f"tokenizer.ggml.{key}" in fields else None

    for name in ["llama-spm", "phi-3"]:
        of = read(name)
        model = proto.ModelProto()
        for id, (text, score, kind) in enumerate(zip(of("tokens"), of("scores"), of("token_type"))):
            # Tokens that were added after the model's are in no text there.
            model.pieces.add(piece=text, score=score, type=3 if kind == 4 or kind == 2 and id else kind)
        model.trainer_spec.model_type, model.trainer_spec.byte_fallback = 2, True
        model.normalizer_spec.add_dummy_prefix, model.normalizer_spec.remove_extra_whitespaces = True, False
        of_pieces(out, f"{name}-model", model.SerializeToString(), texts)
    patterns = {"llama-bpe": (BYTE + "{1,3}" + REST, "tokenizer.model", {"model_type": "llama"}),
                "qwen2": (BYTE + REST, "big.tiktoken", {"model_type": "qwen"})}
    ranked = [text for text in texts if unicodedata.is_normalized("NFC", text)]
    for name, (pattern, file, config) in patterns.items():
        of = read(name)
        ranks = [spelled_bytes(text) for text, kind in zip(of("tokens"), of("token_type")) if kind == 1]
        plain = [text for text in ranked if "<|" not in text]
        of_ranks(out, f"{name}-ranks", file, ranks, pattern, plain, **{"config.json": config})
        if name == "llama-bpe":
            of_tekken(out, "large-tekken", ranks, texts)
    of = read("gpt-2")
    vocab = {text: n for n, text in enumerate(of("tokens"))}
    lines = "#version: 0.2\n" + "".join(line + "\n" for line in of("merges"))
    files = {"vocab.json": vocab, "merges.txt": lines, "config.json": {"model_type": "gpt2"}}
    of_class(out, "gpt-2-merges", files, texts, "GPT2Tokenizer")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["small", out]:
            small(Path(out))
        case ["large", out, shared]:
            large(Path(out), Path(shared))
        case _:
            sys.exit(__doc__)
