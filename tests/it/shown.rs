//! The commands that README.md and the pages of docs/ show, run as a reader types them: page by page, in a folder that
//! has nothing but small models under the names of the page.
//!
//! A comment before a block says what becomes of it. `<!-- run -->`: its commands run in their order, and must succeed; where
//! they begin with `$`, what they print is compared with the lines below them, among which `...` stands for any lines.
//! `<!-- file: NAME -->`: it is the text of a file, which is there before the first command. `<!-- file: NAME, for: TEXT -->`:
//! it takes the place of TEXT in one.
//! `<!-- not run: REASON -->`: it has commands that do not run here. A block with a command of this program has one of them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use safetensors::tensor::{Dtype, TensorView};

use crate::support::command::{ended, printed, scratch, text};

/// A block of a page.
struct Block {
    /// The page and the line of its first line.
    place: String,
    marker: String,
    lines: Vec<String>,
}

impl Block {
    fn has_commands(&self) -> bool {
        let command = |line: &String| line.strip_prefix("$ ").unwrap_or(line).trim().to_owned();
        self.lines
            .iter()
            .any(|line| command(line).starts_with("bench "))
    }

    fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }
}

/// The blocks of a page, each with the comment before it.
fn blocks(page: &Path) -> Vec<Block> {
    let content = std::fs::read_to_string(page).expect("a page");
    let mut blocks = Vec::new();
    let (mut marker, mut open) = (String::new(), None::<Block>);
    for (at, line) in content.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            match open.take() {
                Some(block) => blocks.push(block),
                None => {
                    open = Some(Block {
                        place: format!("{}:{}", page.display(), at + 2),
                        marker: std::mem::take(&mut marker),
                        lines: Vec::new(),
                    });
                }
            }
        } else if let Some(block) = &mut open {
            block.lines.push(line.to_owned());
        } else {
            let comment = line.trim().strip_prefix("<!-- ");
            let comment = comment.and_then(|rest| rest.strip_suffix(" -->"));
            marker = comment.unwrap_or_default().to_owned();
        }
    }
    blocks
}

/// The pages that readers follow.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages: Vec<PathBuf> = [
        "README.md",
        "ARCHITECTURE.md",
        "models/README.md",
        "clients/python/README.md",
    ]
    .map(|page| root.join(page))
    .into();
    let docs = std::fs::read_dir(root.join("docs")).expect("docs/");
    let docs = docs.map(|entry| entry.expect("an entry").path());
    pages.extend(docs.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    pages.sort();
    pages
}

/// A PEFT folder with an adapter of the built-in model that changes nothing.
fn adapter(folder: &Path) {
    std::fs::create_dir(folder).expect("a folder");
    let config = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}"#;
    std::fs::write(folder.join("adapter_config.json"), config).expect("it is written");
    let zeros = [0u8; 128 * 2 * 4];
    let tensor = |shape: [usize; 2]| {
        TensorView::new(Dtype::F32, shape.to_vec(), &zeros).expect("as many bytes as the shape has")
    };
    let name =
        |of: &str| format!("base_model.model.model.layers.0.self_attn.q_proj.lora_{of}.weight");
    let tensors = [(name("A"), tensor([2, 128])), (name("B"), tensor([128, 2]))];
    let path = folder.join("adapter_model.safetensors");
    safetensors::serialize_to_file(tensors, None, &path).expect("it is written");
}

/// A folder with what the commands of the pages name, and with the program as `bin/bench`.
fn prepared() -> tempfile::TempDir {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shipped = root.join("models/tiny-chat.gguf");
    for name in ["FILE.gguf", "MODEL", "MODEL.gguf", "model.gguf", "PATH"] {
        std::fs::copy(&shipped, at(name)).expect("it is copied");
    }
    printed(&["convert", text(&at("FILE.gguf")), text(&at("FOLDER"))]);
    std::fs::create_dir(at("MODELS")).expect("a folder");
    std::fs::copy(&shipped, at("MODELS/one.gguf")).expect("it is copied");
    for name in ["moe.gguf", "MIXTURE"] {
        let vocabulary = ["--vocab", text(&shipped)];
        printed(
            &[
                &["synth", "qwen3moe", "-o", text(&at(name))][..],
                &vocabulary,
            ]
            .concat(),
        );
    }
    for name in ["ADAPTER", "two"] {
        adapter(&at(name));
    }
    for (name, content) in [
        ("PLAN.toml", "[[captures]]\npoint = \"layers.*.out\"\n"),
        ("prompts.jsonl", "\"The sea is\"\n{\"prompt\": [1, 2, 3]}\n"),
        ("happy.txt", "I am glad.\nWhat a fine day!\n"),
        ("sad.txt", "I am sad.\nWhat a bad day!\n"),
    ] {
        std::fs::write(at(name), content).expect("it is written");
    }
    let (chat, copy) = (root.join("models/tiny-chat"), at("models/tiny-chat"));
    std::fs::create_dir_all(&copy).expect("a folder");
    for entry in std::fs::read_dir(chat).expect("the folder of the built-in model") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("it is copied");
    }
    std::fs::create_dir(at("mine")).expect("a folder");
    std::fs::create_dir(at("bin")).expect("a folder");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bench"), at("bin/bench")).expect("a link");
    folder
}

/// A shell that knows the program, in the folder.
fn shell(folder: &Path, script: &str) -> Command {
    let mut command = Command::new("sh");
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .args(["-e", "-c", script])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", folder.join("bin").display()))
        .stdin(Stdio::null());
    command
}

/// Ends a server where a test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server of a line, on a free port, and ends it once it listens.
fn serve(folder: &Path, line: &str, place: &str) {
    let line = line.split(" # ").next().unwrap_or(line);
    let mut command = shell(folder, &format!("exec {line} --port 0"));
    let child = command.stdout(Stdio::piped()).spawn().expect("a shell");
    let mut child = Ended(child);
    let out = child.0.stdout.take().expect("it is piped");
    let first = BufReader::new(out).lines().next();
    let first = first.and_then(Result::ok).unwrap_or_default();
    assert!(
        first.starts_with("listening on "),
        "{place}: {line}: {first}"
    );
}

/// Runs the commands of a block whose lines are commands alone.
fn run_script(folder: &Path, block: &Block) {
    let mut script = String::new();
    let run = |script: &mut String| {
        let ran = ended(&mut shell(folder, script));
        assert!(
            ran.is_fine(),
            "{}: {script}\n{}{}",
            block.place,
            ran.out,
            ran.err
        );
        script.clear();
    };
    for line in &block.lines {
        if line.trim_start().starts_with("bench serve") {
            run(&mut script);
            serve(folder, line, &block.place);
        } else {
            script.push_str(line);
            script.push('\n');
        }
    }
    run(&mut script);
}

/// Whether a text has the shown lines, of which `...` stands for any.
fn is_shown(found: &str, shown: &[String]) -> bool {
    let found: Vec<&str> = found.lines().map(str::trim_end).collect();
    let mut parts = shown.split(|line| line == "...");
    let first = parts.next().unwrap_or_default();
    let first: Vec<&str> = first.iter().map(String::as_str).collect();
    let Some(mut rest) = found.strip_prefix(&first[..]) else {
        return false;
    };
    let mut is_open = false;
    for part in parts {
        let place = rest
            .windows(part.len().max(1))
            .position(|lines| lines.iter().eq(part));
        match place {
            _ if part.is_empty() => is_open = true,
            Some(at) => {
                is_open = false;
                rest = &rest[at + part.len()..];
            }
            None => return false,
        }
    }
    rest.is_empty() || is_open
}

/// Runs the commands of a block that shows what they print. One that shows an error fails.
fn run_console(folder: &Path, block: &Block) {
    let mut lines = block.lines.iter().peekable();
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("$ ") else {
            panic!("{}: expected a command, found {line}", block.place);
        };
        let mut command = command.to_owned();
        while command.ends_with('\\') {
            command.push('\n');
            command.push_str(lines.next().expect("the command goes on"));
        }
        let mut shown = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
            shown.push(line.trim_end().to_owned());
        }
        let fails = shown.iter().any(|line| line.starts_with("error: "));
        let ran = ended(&mut shell(folder, &format!("exec 2>&1\n{command}")));
        let (place, out) = (&block.place, &ran.out);
        assert_eq!(!ran.is_fine(), fails, "{place}: {command}\n{out}");
        assert!(
            is_shown(out, &shown),
            "{place}: {command}\nprints\n{out}instead of\n{}",
            shown.join("\n")
        );
    }
}

/// Writes the text of a block to a file, or to a place in one.
fn write(folder: &Path, block: &Block, target: &str) {
    let (name, place) = match target.split_once(", for: ") {
        Some((name, place)) => (name, Some(place)),
        None => (target, None),
    };
    let path = folder.join(name);
    let content = match place {
        None => block.text(),
        Some(place) => {
            let known = std::fs::read_to_string(&path).expect("an earlier block wrote it");
            assert_eq!(known.matches(place).count(), 1, "{}: {place}", block.place);
            known.replace(place, &block.text())
        }
    };
    std::fs::write(&path, content).expect("it is written");
}

#[test]
fn shown_commands_run_as_they_are_shown() {
    let mut n_run = 0;
    for page in pages() {
        let blocks = blocks(&page);
        if !blocks.iter().any(|block| block.marker == "run") {
            continue;
        }
        let folder = prepared();
        let target = |block: &Block| block.marker.strip_prefix("file: ").map(str::to_owned);
        let is_whole = |target: &String| !target.contains(", for: ");
        for block in &blocks {
            if let Some(target) = target(block).filter(is_whole) {
                write(folder.path(), block, &target);
            }
        }
        for block in &blocks {
            if let Some(target) = target(block).filter(|target| !is_whole(target)) {
                write(folder.path(), block, &target);
            } else if block.marker == "run" {
                n_run += 1;
                match block.lines.iter().any(|line| line.starts_with("$ ")) {
                    true => run_console(folder.path(), block),
                    false => run_script(folder.path(), block),
                }
            }
        }
    }
    assert!(n_run >= 10, "{n_run} blocks ran");
}

#[test]
fn every_block_with_commands_runs_or_says_why_not() {
    for block in pages().iter().flat_map(|page| blocks(page)) {
        let reason = block.marker.strip_prefix("not run: ").map(str::trim);
        let is_known = block.marker == "run" || reason.is_some_and(|reason| !reason.is_empty());
        assert!(
            is_known || !block.has_commands(),
            "{}: a block with commands has `<!-- run -->` or `<!-- not run: REASON -->` before it",
            block.place
        );
    }
}

#[test]
fn shown_lines_are_compared_in_order() {
    let shown = |lines: &[&str]| {
        lines
            .iter()
            .map(|line| (*line).to_owned())
            .collect::<Vec<_>>()
    };
    assert!(is_shown("a\nb\n", &shown(&["a", "b"])));
    assert!(is_shown("a\nx\ny\nb\n", &shown(&["a", "...", "b"])));
    assert!(is_shown("a\nx\n", &shown(&["a", "..."])));
    assert!(is_shown("x\nb\n", &shown(&["...", "b"])));
    assert!(!is_shown("a\nb\nc\n", &shown(&["a", "b"])));
    assert!(!is_shown("a\nb\n", &shown(&["b"])));
    assert!(!is_shown("a\nx\n", &shown(&["a", "...", "b"])));
}
