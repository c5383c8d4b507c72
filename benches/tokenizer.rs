//! Speed of the tokenizers over a vocabulary made here: every beginning of some thousand
//! made-up words is a token, so that words take as many merges as in a real vocabulary.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lab_base::tokenizer::Tokenizer;
use lab_base::weights::{Array, Metadata, StringArray, Value};

const WORDS: u32 = 8000;

/// The `n`th of the made-up words: one to four syllables.
fn word(n: u32) -> String {
    const SYLLABLES: [&str; 20] = [
        "ba", "co", "den", "e", "fi", "gan", "hor", "in", "ka", "lo", "mer", "na", "or", "pe",
        "ra", "sti", "ta", "un", "ver", "zi",
    ];
    let mut rest = n.wrapping_mul(2_654_435_761) >> 8;
    let mut out = String::new();
    for _ in 0..=rest % 4 {
        rest /= 4;
        out.push_str(SYLLABLES[(rest % 20) as usize]);
        rest /= 3;
    }
    out
}

/// About `bytes` bytes of words, with some punctuation and numbers.
fn text(bytes: usize) -> String {
    let mut out = String::with_capacity(bytes + 32);
    for n in 0u32.. {
        if out.len() >= bytes {
            break;
        }
        out.push_str(&word(n.wrapping_mul(7919) % (WORDS + WORDS / 4)));
        out.push_str(match n % 23 {
            5 => ", ",
            11 => ". ",
            17 => " 1984 ",
            22 => ".\n\n",
            _ => " ",
        });
    }
    out
}

fn strings(items: &[String]) -> Value {
    Value::Array(Array::Str(items.iter().collect::<StringArray>()))
}

fn metadata(model: &str, tokens: &[String]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("tokenizer.ggml.model", Value::Str(model.to_owned()));
    metadata.insert("tokenizer.ggml.tokens", strings(tokens));
    metadata
}

fn byte_level(pre: &str) -> Tokenizer {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let shifted = (0..=255).filter(|&b| !printable(b)).zip(0x100u32..);
    let mut tokens: Vec<String> = (0..=255u8)
        .filter(|&b| printable(b))
        .map(|b| char::from(b).to_string())
        .chain(shifted.filter_map(|(_, code)| char::from_u32(code).map(String::from)))
        .collect();
    let mut merges = Vec::new();
    for word in (0..WORDS).map(|n| format!("Ġ{}", word(n))) {
        for (at, c) in word.char_indices().skip(1) {
            merges.push(format!("{} {c}", &word[..at]));
            tokens.push(word[..at + c.len_utf8()].to_owned());
        }
    }
    let mut metadata = metadata("gpt2", &tokens);
    metadata.insert("tokenizer.ggml.pre", Value::Str(pre.to_owned()));
    metadata.insert("tokenizer.ggml.merges", strings(&merges));
    Tokenizer::from_metadata(&metadata).expect("the vocabulary is complete")
}

fn by_score() -> Tokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
    for word in (0..WORDS).map(|n| format!("▁{}", word(n))) {
        let ends = word.char_indices().map(|(at, c)| at + c.len_utf8());
        tokens.extend(ends.map(|end| word[..end].to_owned()));
    }
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let mut metadata = metadata("llama", &tokens);
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    Tokenizer::from_metadata(&metadata).expect("the vocabulary is complete")
}

fn encode(c: &mut Criterion) {
    let tokenizers = [
        ("merges, one pattern", byte_level("qwen2")),
        ("merges, six patterns", byte_level("deepseek-llm")),
        ("by score", by_score()),
    ];
    let texts = [
        ("words", text(1 << 20)),
        ("one letter", "a".repeat(1 << 20)),
        ("spaces", " ".repeat(1 << 20)),
    ];
    for (what, text) in &texts {
        let mut group = c.benchmark_group(format!("encode {what}"));
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.sample_size(10);
        for (name, tokenizer) in &tokenizers {
            group.bench_function(*name, |b| b.iter(|| tokenizer.encode(text, true, true)));
        }
        group.finish();
    }
}

fn decode(c: &mut Criterion) {
    let tokenizer = byte_level("qwen2");
    let ids = tokenizer
        .encode(&text(1 << 20), false, false)
        .expect("every byte has a token");
    let mut group = c.benchmark_group("decode words");
    group.throughput(Throughput::Elements(ids.len() as u64));
    group.bench_function("merges", |b| b.iter(|| tokenizer.decode(&ids)));
    group.finish();
}

criterion_group!(benches, encode, decode);
criterion_main!(benches);
