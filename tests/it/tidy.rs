//! The mechanical rules of the repository, as code.

use std::collections::BTreeSet;

use crate::support::sources::{OF_TESTS, check, root, sources, without_tests};
use lab_core::blocks::REGISTRY;

#[test]
fn only_items_of_tests_are_left_out() {
    let text = "a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\nmod more {\n    x;\n}\nc\n    #[cfg(test)]\n    fn f() {\n        y;\n    }\nd\n";
    let left: Vec<String> = without_tests(text).lines().map(str::to_owned).collect();
    let kept: Vec<&str> = left
        .iter()
        .map(String::as_str)
        .filter(|line| *line != OF_TESTS)
        .collect();
    assert_eq!(kept, ["a", "b", "c", "d"]);
    assert_eq!(left.len(), text.lines().count());
}

/// Whether a whole file of `src` is unit tests.
fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs")
}

#[test]
fn every_file_says_what_it_is() {
    let all = sources("src")
        .into_iter()
        .chain(sources("tests"))
        .chain(sources("benches"));
    let faults: Vec<String> = all
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(name, _)| format!("{name}: no `//!` first"))
        .collect();
    check(&faults);
}

#[test]
fn no_model_family_is_named_in_the_code() {
    // Names that are also file formats, tensor-library terms, words or blocks (`mamba`: the layer
    // that many families use is called so in its paper) are left out.
    const FAMILIES: &[&str] = &[
        "qwen",
        "gemma",
        "mistral",
        "mixtral",
        "deepseek",
        "falcon",
        "granite",
        "llada",
        "olmo",
        "starcoder",
        "stablelm",
        "cohere",
        "exaone",
        "hunyuan",
        "ernie",
        "bailing",
        "nemotron",
        "minicpm",
        "lfm2",
        "smollm",
        "kimi",
        "internlm",
        "jamba",
        "plamo",
        "arctic",
        "dbrx",
        "jais",
        "apertus",
        "minimax",
        "longcat",
        "bitnet",
        "xverse",
    ];
    let mut faults = Vec::new();
    for (name, text) in sources("src") {
        // Texts of tokens are data.
        if is_test(&name) || name == "src/base/tokenizer/roles.rs" {
            continue;
        }
        for (i, line) in without_tests(&text).lines().enumerate() {
            let lower = line.to_ascii_lowercase();
            if line.trim_start().starts_with("//") && lower.contains("llama.cpp") {
                continue;
            }
            for family in FAMILIES.iter().filter(|family| lower.contains(**family)) {
                faults.push(format!("{name}:{}: names `{family}`", i + 1));
            }
            // The program is no family.
            if lower.replace("\"llama-server\"", "").contains("\"llama") {
                faults.push(format!("{name}:{}: names `llama`", i + 1));
            }
        }
    }
    check(&faults);
}

#[test]
fn unsafe_code_is_where_it_belongs_and_says_why() {
    let mut faults = Vec::new();
    for (name, text) in sources("src") {
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !code.contains("unsafe {") {
                continue;
            }
            if !name.starts_with("src/base/ggml/") && name != "src/base/weights/map.rs" {
                faults.push(format!("{name}:{}: unsafe outside src/base/ggml", i + 1));
            }
            let above = lines[i.saturating_sub(8)..i]
                .iter()
                .any(|line| line.contains("SAFETY:"));
            if !above {
                faults.push(format!("{name}:{}: unsafe without a SAFETY line", i + 1));
            }
        }
    }
    check(&faults);
}

/// The packages whose first pages list their modules in the order in which data flows, with each of their modules.
fn packages() -> Vec<(&'static str, Vec<String>)> {
    let of_line = |line: &str| {
        let rest = line.strip_prefix("//! - [`")?;
        Some(rest.split('`').next()?.to_owned())
    };
    let packages = ["base", "core"].into_iter().map(|package| {
        let page = root().join(format!("src/{package}/lib.rs"));
        let text = std::fs::read_to_string(page).expect("readable");
        (package, text.lines().filter_map(of_line).collect())
    });
    packages.collect()
}

/// The names after a prefix in a line of code, such as `crate::`: modules, and macros, which no rule is about.
fn named<'l>(line: &'l str, prefix: &'l str) -> impl Iterator<Item = &'l str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split(prefix).skip(1).flat_map(|path| {
        let several = path
            .strip_prefix('{')
            .and_then(|list| list.split('}').next());
        let names = several.map_or(path, |list| list).split(',');
        let n = if several.is_some() { usize::MAX } else { 1 };
        let is_end = |c: char| !c.is_alphanumeric() && c != '_';
        names
            .take(n)
            .filter_map(move |name| name.trim().split(is_end).next())
    })
}

#[test]
fn imports_never_point_up() {
    let mut faults = Vec::new();
    for (package, order) in packages() {
        let folder = format!("src/{package}/");
        let rank = |name: &str| order.iter().position(|module| module == name);
        for (name, text) in sources(&folder) {
            let below = name.strip_prefix(&folder).unwrap_or(&name);
            let Some((own, _)) = below.split_once('/') else {
                continue;
            };
            let Some(at) = rank(own) else {
                faults.push(format!("{name}: {folder}lib.rs does not list `{own}`"));
                continue;
            };
            if is_test(&name) {
                continue;
            }
            for (i, line) in without_tests(&text).lines().enumerate() {
                for known in named(line, "crate::") {
                    if rank(known).is_some_and(|other| other > at) {
                        faults.push(format!("{name}:{}: `{own}` knows `{known}`", i + 1));
                    }
                }
            }
        }
    }
    check(&faults);
}

/// What a module must not know though its package does.
#[test]
fn definitions_know_neither_the_tensor_library_nor_texts() {
    const APART: &[(&str, &[&str])] = &[
        (
            "src/core/arch/",
            &["weights", "ggml", "tokenizer", "chat", "grammar"],
        ),
        // Blocks of its types in a file are read by its functions.
        ("src/core/hf/packed/stored.rs", &["chat", "grammar"]),
        ("src/core/hf/", &["ggml", "chat", "grammar"]),
        ("src/core/plan/", &["ggml", "tokenizer", "chat", "grammar"]),
        ("src/core/engine/scheduler.rs", &["ggml"]),
    ];
    let mut faults = Vec::new();
    for (name, text) in sources("src/core") {
        let apart = APART.iter().find(|(place, _)| name.starts_with(place));
        let Some((_, forbidden)) = apart.filter(|_| !is_test(&name)) else {
            continue;
        };
        for (i, line) in without_tests(&text).lines().enumerate() {
            for known in named(line, "lab_base::").filter(|known| forbidden.contains(known)) {
                faults.push(format!("{name}:{}: knows `{known}`", i + 1));
            }
        }
    }
    check(&faults);
}

/// The contract of a block has its name, its picture and its description: a new block touches its file and its line in
/// the registry.
#[test]
fn blocks_are_named_in_their_own_folder_only() {
    let blocks: Vec<&str> = REGISTRY.blocks.iter().map(|block| block.name).collect();
    let mut faults = Vec::new();
    for (name, text) in sources("src") {
        // Operations of ggml and encodings of bodies have names of their own.
        let is_apart = [
            "src/core/blocks/",
            "src/base/ggml/",
            "src/server/http/body.rs",
            "src/server/media_access/",
            "src/hub/",
        ]
        .iter()
        .any(|folder| name.starts_with(folder));
        if is_apart || is_test(&name) {
            continue;
        }
        for (i, line) in without_tests(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let named = code.split('"').skip(1).step_by(2);
            for block in named.filter(|text| blocks.contains(text)) {
                faults.push(format!("{name}:{}: names the block `{block}`", i + 1));
            }
        }
    }
    check(&faults);
}

#[test]
fn only_the_command_line_prints_and_nothing_is_left_undone() {
    let mut faults = Vec::new();
    let own = sources("src").into_iter();
    for (name, text) in own.filter(|(name, _)| !is_test(name)) {
        for (i, line) in without_tests(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let prints = [
                "println!",
                "eprintln!",
                "print!",
                "eprint!",
                "process::exit",
            ];
            if prints.iter().any(|p| code.contains(p))
                && name != "src/main.rs"
                && name != "src/base/embed.rs"
                && !name.starts_with("src/cli/")
            {
                faults.push(format!("{name}:{}: prints or exits", i + 1));
            }
            for word in ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX"] {
                if line.contains(word) {
                    faults.push(format!("{name}:{}: `{word}`", i + 1));
                }
            }
        }
    }
    check(&faults);
}

#[test]
fn every_registered_block_has_its_file() {
    let text = std::fs::read_to_string(root().join("src/core/blocks/mod.rs")).expect("readable");
    let list = text
        .split("blocks! {")
        .nth(1)
        .and_then(|rest| rest.split('}').next())
        .expect("the list of blocks");
    let listed: BTreeSet<String> = list
        .split(',')
        .map(|name| name.trim().to_owned())
        .filter(|n| !n.is_empty() && !n.starts_with("#[cfg(test)]"))
        .collect();
    let registered: BTreeSet<String> = lab_core::blocks::REGISTRY
        .blocks
        .iter()
        .map(|c| c.name.to_owned())
        .collect();
    assert_eq!(listed, registered, "a block's name is its file's");
    for name in &listed {
        assert!(
            root().join(format!("src/core/blocks/{name}.rs")).is_file(),
            "there is no src/core/blocks/{name}.rs"
        );
    }
}

#[test]
fn contracts_are_sound() {
    use lab_core::arch::expr::Expr;
    for contract in lab_core::blocks::REGISTRY.all() {
        let name = contract.name;
        for option in contract.options {
            assert!(
                !option.doc.is_empty(),
                "{name}.{}: no description",
                option.name
            );
        }
        for weight in contract.weights {
            let expressions = weight.shape.iter().chain([&weight.when]);
            for text in expressions {
                Expr::parse(text, 0)
                    .unwrap_or_else(|p| panic!("{name}.{}: `{text}`: {}", weight.key, p.message));
            }
        }
        for option in contract.options {
            Expr::parse(option.when, 0).unwrap_or_else(|p| {
                panic!("{name}.{}: `{}`: {}", option.name, option.when, p.message)
            });
        }
        for rule in contract.rules {
            Expr::parse(rule.holds, 0)
                .unwrap_or_else(|p| panic!("{name}: `{}`: {}", rule.holds, p.message));
        }
    }
}

/// A definition that tells models apart by their sizes says so in `[assumptions]`, with a reason.
#[test]
fn models_are_told_apart_by_size_in_assumptions_only() {
    const SIZES: &[&str] = &["n_layer", "n_vocab", "n_embd", "n_head", "n_ff", "n_expert"];
    let mut faults = Vec::new();
    for entry in std::fs::read_dir(root().join("archs")).expect("readable") {
        let path = entry.expect("readable").path();
        let text = std::fs::read_to_string(&path).expect("definitions are UTF-8");
        // Variants are models with their sizes.
        let mut is_assumption = false;
        for (i, line) in text.lines().enumerate() {
            if line.starts_with('[') {
                is_assumption = ["[assumptions]", "[variants]"].contains(&line);
            }
            // A count of 0 asks whether there is such a thing at all.
            let compares = |name: &str| {
                let mut rest = line.split(name).skip(1);
                rest.any(|rest| {
                    let value = rest.trim_start().trim_start_matches(['=', '!', '<', '>']);
                    let is_compared = value.len() < rest.trim_start().len();
                    let is_size = |c: char| c.is_ascii_digit() && c != '0';
                    is_compared && value.trim_start().starts_with(is_size)
                })
            };
            if !is_assumption && !line.starts_with('#') && SIZES.iter().any(|name| compares(name)) {
                faults.push(format!("{}:{}: `{line}`", path.display(), i + 1));
            }
        }
    }
    check(&faults);
}

#[test]
fn paths_in_the_guides_exist() {
    let mut faults = Vec::new();
    for guide in ["README.md", "AGENTS.md", "ARCHITECTURE.md", "docs/tour.md"] {
        let text = std::fs::read_to_string(root().join(guide)).expect("the guides are there");
        for word in text.split(|c: char| c.is_whitespace() || "`()|,".contains(c)) {
            let path = word.trim_end_matches(['.', ':', ';']);
            let ours = [
                "src/",
                "archs/",
                "tests/",
                "scripts/",
                "docs/",
                "models/",
                "ggml-sys/",
            ];
            if ours.iter().any(|start| path.starts_with(start))
                && !path.contains(['*', '<', 'N'])
                && !root().join(path).exists()
            {
                faults.push(format!("{guide}: `{path}` does not exist"));
            }
        }
    }
    check(&faults);
}

/// The guide states these numbers of lines.
#[test]
fn definitions_stay_short() {
    let entries = std::fs::read_dir(root().join("archs")).expect("the definitions are there");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let paths = paths.filter(|path| path.to_string_lossy().ends_with(".arch.toml"));
    let mut lines: Vec<usize> = paths
        .map(|path| {
            let text = std::fs::read_to_string(path).expect("readable");
            text.lines().count()
        })
        .collect();
    lines.sort_unstable();
    let (median, longest) = (lines[lines.len() / 2], lines[lines.len() - 1]);
    assert!(median <= 36, "half of the definitions have {median} lines");
    assert!(longest <= 110, "the longest definition has {longest} lines");
}
