//! The mechanical rules of the house, as code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lab_core::blocks::REGISTRY;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below a folder, with its path from the root and its text.
pub fn sources(folder: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("the tree is readable") {
            let path = entry.expect("the tree is readable").path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                out.push(path);
            }
        }
    }
    let mut paths = Vec::new();
    walk(&root().join(folder), &mut paths);
    paths.sort();
    assert!(!paths.is_empty(), "{folder} holds no Rust files");
    paths
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("sources are UTF-8");
            let name = path
                .strip_prefix(root())
                .expect("below the root")
                .to_string_lossy()
                .into_owned();
            (name, text)
        })
        .collect()
}

/// What stands for a line of an item under `#[cfg(test)]`.
const OF_TESTS: &str = "//-";

/// A file without its items under `#[cfg(test)]`, each of whose lines becomes [`OF_TESTS`]. Items end as
/// rustfmt writes them: with a semicolon on their first line, or with a brace at their own indentation.
pub fn without_tests(text: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        out.push_str(OF_TESTS);
        out.push('\n');
        for inner in lines.by_ref() {
            out.push_str(OF_TESTS);
            out.push('\n');
            let is_end = inner.trim_end().ends_with([';', '}']) || inner.trim() == "},";
            let is_attribute = inner.trim_start().starts_with("#[");
            if indent(inner) == indent(line) && is_end && !is_attribute {
                break;
            }
        }
    }
    out
}

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

pub fn check(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
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

/// Files that have words: code, scripts, pages and definitions below the root, without those that are generated, that
/// other programs wrote, or that name old names (the change log).
fn texts() -> Vec<(String, String)> {
    const FOLDERS: &[&str] = &[
        "src", "tests", "benches", "fuzz", "ggml-sys", "docs", "archs", "stmaps", "tools",
        "scripts", "clients", "models",
    ];
    const APART: &[&str] = &[
        "CHANGELOG.md",
        "docs/blocks.md",
        "docs/diagrams",
        "docs/models.md",
        "fuzz/seeds",
        "tests/it/fixtures",
        "tests/it/snapshots",
        // The list itself.
        "tests/it/tidy.rs",
    ];
    const ENDINGS: &[&str] = &[
        "rs", "md", "toml", "py", "js", "mjs", "html", "css", "sh", "c", "h", "cpp", "ipynb",
        "yaml", "txt",
    ];
    fn walk(path: PathBuf, out: &mut Vec<(String, String)>) {
        let name = path.strip_prefix(root()).expect("below the root");
        let name = name.to_string_lossy().into_owned();
        let last = path.file_name().unwrap_or_default().to_string_lossy();
        let is_built = ["target", "node_modules", "__pycache__"].contains(&&*last);
        if APART.contains(&name.as_str()) || last.starts_with('.') || is_built {
            return;
        }
        if path.is_dir() {
            for entry in std::fs::read_dir(path).expect("the tree is readable") {
                walk(entry.expect("the tree is readable").path(), out);
            }
            return;
        }
        let ending = path.extension().unwrap_or_default().to_string_lossy();
        if ENDINGS.contains(&&*ending) || last == "Makefile" {
            let text = std::fs::read_to_string(&path).expect("texts are UTF-8");
            out.push((name, text));
        }
    }
    let mut out = Vec::new();
    for folder in FOLDERS {
        walk(root().join(folder), &mut out);
    }
    for entry in std::fs::read_dir(root()).expect("the tree is readable") {
        let path = entry.expect("the tree is readable").path();
        if path.is_file() {
            walk(path, &mut out);
        }
    }
    out.sort();
    out
}

/// The words of a text, each with the number of its line: lower-case, without the marks of comments, and with the
/// parts of names (`a_name`, `ofType`) as words. A word and its punctuation are apart.
fn words_of(text: &str) -> Vec<(String, usize)> {
    let mut words = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let marks = ["///", "//!", "//", "#", "*"];
        let mark = marks.into_iter().find(|mark| line.starts_with(mark));
        let line = line.strip_prefix(mark.unwrap_or_default()).unwrap_or(line);
        let (mut word, mut was_lower) = (String::new(), false);
        let mut end = |word: &mut String| match word.is_empty() {
            true => (),
            false => words.push((std::mem::take(word), i + 1)),
        };
        for c in line.chars() {
            let is_mark = !c.is_alphanumeric() && c != '-' && c != '\'';
            if is_mark || (c.is_uppercase() && was_lower) {
                end(&mut word);
            }
            was_lower = c.is_lowercase();
            match is_mark {
                true if c == '_' || c.is_whitespace() => (),
                true => {
                    word.push(c);
                    end(&mut word);
                }
                false => word.extend(c.to_lowercase()),
            }
        }
        end(&mut word);
    }
    words
}

/// The lines on which a phrase starts.
fn lines_of(words: &[(String, usize)], phrase: &str) -> Vec<usize> {
    let phrase = words_of(phrase);
    let is_it = |found: &&[(String, usize)]| found.iter().zip(&phrase).all(|(a, b)| a.0 == b.0);
    let starts = words.windows(phrase.len()).filter(is_it);
    starts.map(|found| found[0].1).collect()
}

#[test]
fn phrases_are_found_over_lines_and_in_names() {
    let words = words_of(
        "/// The Stop\n///   string.\nfn stop_string() -> StopString {}\n# It stops. String\n",
    );
    assert_eq!(lines_of(&words, "stop string"), [1, 3, 3]);
    assert_eq!(lines_of(&words, "string"), [2, 3, 3, 4]);
}

/// Words that were this project's own, with what the field says (docs/glossary.md). A word that also has a right use
/// is listed with those around it that make it wrong.
#[test]
fn retired_words_do_not_come_back() {
    const RETIRED: &[(&str, &str)] = &[
        ("ability", "capability"),
        ("abilities", "capabilities"),
        ("attention sees", "attends to"),
        ("attn.pattern", "attn.weights"),
        ("behind each", "after each"),
        ("dense network", "dense MLP"),
        ("dense networks", "dense MLPs"),
        ("enum said {", "what it is: an event"),
        ("enum step {", "which step: StepPlan, DenoisingStep"),
        ("enum turn <", "by which positions: RotateBy"),
        ("filled in", "text diffusion, denoising step"),
        ("filling in", "text diffusion, denoising step"),
        ("fills in", "text diffusion, denoising step"),
        ("free cells", "free slots"),
        ("gain of a norm", "weight of a norm"),
        ("guesses", "draft tokens"),
        ("guessing ahead", "speculative decoding, draft tokens"),
        ("is turned", "has_rope, is_rotated or is_transposed"),
        ("keeping its scores", "flash attention"),
        ("kept row", "cached row"),
        ("keys of blocks", "keys of spans"),
        ("kv cell", "KV slot"),
        ("kv cells", "KV slots"),
        ("kv page", "KV block"),
        ("kv pages", "KV blocks"),
        ("ledger", "block manager"),
        ("let go", "reap, evict or free"),
        ("lets go", "reaps, evicts or frees"),
        ("made room", "preempted"),
        ("made-up model", "random model"),
        ("make room", "preempt"),
        ("makes room", "preempt"),
        ("no sensible", "a maximum"),
        ("offset of a projection", "bias"),
        ("queries see", "attend to"),
        ("query sees", "attends to"),
        ("recall", "read"),
        ("recalls", "reads"),
        ("retype", "quantise"),
        ("retyped", "quantised"),
        ("retypes", "quantises"),
        ("rotation turns", "rotates"),
        ("shared begin", "cached prefix"),
        ("shared begins", "prefix cache"),
        ("sees a window", "attends to a window"),
        ("sight", "attention view"),
        ("stop string", "stop sequence"),
        ("stop strings", "stop sequences"),
        ("stop text", "stop sequence"),
        ("stop texts", "stop sequences"),
        ("stored gain", "scale"),
        ("slots see", "attend to"),
        ("struct asked", "what is asked: LabField, PointUse"),
        ("struct maker", "what is made: LazyTensor, DrawContext"),
        ("struct step <", "which step: StepPlan, DenoisingStep"),
        ("struct watch", "recorder or watchdog"),
        ("struct way", "which path: BestPath"),
        ("suspects", "quarantined"),
        ("take back", "roll back"),
        ("taken back", "rolled back"),
        ("takes back", "rolls back"),
        ("the affair of", "who does it"),
        ("the begin of", "the start of, the prefix of"),
        ("the last stream", "the last hidden state"),
        ("the stream behind", "hidden state after"),
        ("the stream of a token", "the hidden state of a token"),
        ("token sees", "attends to"),
        ("told from content", "separated from content"),
        ("turns the other way", "rotates by the negated angle"),
        ("twin", "duplicate"),
        ("twins", "duplicates"),
        ("unsaid", "unset"),
        ("values of each token are kept", "KV cache bytes per token"),
        ("what is said of", "description"),
        ("who sees whom", "attention mask"),
    ];
    let mut faults = Vec::new();
    for (name, text) in texts() {
        let words = words_of(&text);
        for (phrase, instead) in RETIRED {
            for line in lines_of(&words, phrase) {
                faults.push(format!("{name}:{line}: `{phrase}`, say {instead}"));
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

/// The modules in the order of the first pages of the five libraries: data flows down, imports never point up.
fn modules() -> Vec<String> {
    let page = |name: String| std::fs::read_to_string(root().join(name)).expect("readable");
    let text = ["base", "core", "server", "inspection", "lib"]
        .map(|name| page(format!("src/{name}.rs")))
        .concat();
    let of_line = |line: &str| {
        let rest = line.strip_prefix("//! - ")?.trim_start_matches(['[', '`']);
        Some(rest.split('`').next()?.to_owned())
    };
    text.lines().filter_map(of_line).collect()
}

/// The module that a file belongs to: `src/NAME.rs` or a file below `src/NAME`.
fn module(file: &str) -> &str {
    let below = file.strip_prefix("src/").unwrap_or(file);
    let first = below.split('/').next().unwrap_or(below);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// What a line of code names of the crate: modules, and macros, which no rule is about.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split("crate::").skip(1).flat_map(|path| {
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
    // What a module must not know though it stands below it.
    const APART: &[(&str, &[&str])] = &[
        (
            "src/core/arch/",
            &["weights", "ggml", "text", "sampling", "constraint"],
        ),
        ("src/core/hf/", &["ggml", "text", "sampling", "constraint"]),
        (
            "src/core/plan/",
            &["ggml", "text", "sampling", "constraint"],
        ),
        ("src/base/ggml/", &["arch", "plan"]),
        ("src/base/chat/", &["arch", "plan", "ggml", "blocks"]),
        (
            "src/sampling/",
            &["arch", "plan", "ggml", "blocks", "model", "weights"],
        ),
        (
            "src/server/http/transport/",
            &["ggml", "text", "model", "engine"],
        ),
        (
            "src/base/grammar/",
            &["arch", "plan", "ggml", "blocks", "model", "sampling"],
        ),
        ("src/core/engine/scheduler.rs", &["ggml", "model"]),
    ];
    let order = modules();
    let rank = |name: &str| order.iter().position(|module| module == name);
    let mut faults = Vec::new();
    for (name, text) in sources("src") {
        let own = module(&name);
        if is_test(&name)
            || [
                "base",
                "build",
                "core",
                "inspection",
                "lib",
                "main",
                "server",
            ]
            .contains(&own)
        {
            continue;
        }
        let Some(at) = rank(own) else {
            faults.push(format!(
                "{name}: none of src/base/lib.rs, src/core/lib.rs, src/server.rs, src/inspection.rs and src/lib.rs lists `{own}`"
            ));
            continue;
        };
        for (i, line) in without_tests(&text).lines().enumerate() {
            let apart = APART.iter().filter(|(place, _)| name.starts_with(place));
            let forbidden: Vec<&str> = apart.flat_map(|(_, names)| *names).copied().collect();
            for known in named(line) {
                if rank(known).is_some_and(|other| other > at) || forbidden.contains(&known) {
                    faults.push(format!("{name}:{}: `{own}` knows `{known}`", i + 1));
                }
            }
        }
    }
    check(&faults);
}

/// What a block is called, drawn like and described as stands in its contract: a new block touches its file and its
/// line in the registry.
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
                && !["src/main.rs", "src/build.rs"].contains(&name.as_str())
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

#[test]
fn files_stay_within_their_budget() {
    let mut faults = Vec::new();
    for (name, text) in sources("src") {
        let lines = without_tests(&text);
        let lines = lines.lines().filter(|line| *line != OF_TESTS).count();
        if lines > 600 {
            faults.push(format!("{name}: {lines} lines, the budget is 600"));
        }
    }
    check(&faults);
}
