//! A schema, regular expression or grammar, by its first byte, and the first tokens under it.
#![no_main]

use std::sync::{Arc, LazyLock};

use lab_base::grammar::{Compiler, Constraint};

static COMPILER: LazyLock<Arc<Compiler>> =
    LazyLock::new(|| Arc::new(Compiler::new(fuzz::tokenizer())));

libfuzzer_sys::fuzz_target!(|text: &str| {
    let mut chars = text.chars();
    let kind = chars.next();
    let rest = chars.as_str().to_owned();
    let constraint = match kind {
        Some('j') => match serde_json::from_str(&rest) {
            Ok(schema) => Constraint::JsonSchema(schema),
            Err(_) => return,
        },
        Some('r') => Constraint::Regex(rest),
        Some('l') => Constraint::Lark(rest),
        _ => Constraint::Gbnf(rest),
    };
    let Ok(compiled) = COMPILER.compile(constraint) else {
        return;
    };
    let mut matcher = compiled.matcher();
    for _ in 0..8 {
        let Ok(mask) = matcher.mask() else { return };
        let allowed =
            (0..mask.len() as u32 * 32).find(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1);
        match allowed {
            Some(id) if matcher.accept(id).is_ok() => {}
            _ => return,
        }
    }
});
