//! The sources of the repository as texts.

use std::path::{Path, PathBuf};

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
pub const OF_TESTS: &str = "//-";

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

pub fn check(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
