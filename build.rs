//! Has the program and its tests export ggml's functions: backend libraries that are loaded at run time call them, so
//! that there is one copy of ggml's core. And says from which commit they are built.

use std::env;
use std::path::Path;
use std::process::Command;

/// In an archive of the sources that git makes, this file holds the commit; elsewhere the words that git puts it in place of.
const ARCHIVE_COMMIT: &str = "packaging/commit.txt";
/// What the program is built from.
const SOURCES: [&str; 9] = [
    "Cargo.lock",
    "Cargo.toml",
    "archs",
    "build.rs",
    "ggml-sys",
    "models",
    "src",
    "stmaps",
    "tools",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => println!("cargo::rustc-link-arg=-Wl,-export_dynamic"),
        Ok("windows") => {}
        _ => println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=ggml_*"),
    }
    // Tests build a backend library of their own.
    if let Ok(include) = env::var("DEP_GGML_INCLUDE") {
        println!("cargo::rustc-env=GGML_INCLUDE={include}");
    }
    println!("cargo::rerun-if-env-changed=SOURCE_COMMIT");
    println!("cargo::rerun-if-changed={ARCHIVE_COMMIT}");
    let commit = commit().unwrap_or_default();
    println!("cargo::rustc-env=PROGRAM_COMMIT={commit}");
}

/// The commit of the sources: what the environment says, what an archive says, what git says. A development build does not ask git: it
/// would be compiled and linked again with each commit.
fn commit() -> Option<String> {
    if let Ok(commit) = env::var("SOURCE_COMMIT") {
        return Some(commit).filter(|commit| !commit.is_empty());
    }
    let archived = std::fs::read_to_string(ARCHIVE_COMMIT).unwrap_or_default();
    let archived = archived.trim();
    if !archived.is_empty() && !archived.starts_with('$') {
        return Some(archived.to_owned());
    }
    if env::var("PROFILE").as_deref() != Ok("release") {
        return None;
    }
    // A folder within another project's repository has none.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let here = env::var("CARGO_MANIFEST_DIR").ok()?;
    if Path::new(&top).canonicalize().ok()? != Path::new(&here).canonicalize().ok()? {
        return None;
    }
    // Commits and checkouts write these; the sources decide whether they are those of the commit.
    let written = ["HEAD", "logs/HEAD", "index"];
    let written = written.map(|name| git(&["rev-parse", "--git-path", name]));
    let written = written.iter().flatten().map(String::as_str);
    for path in written
        .chain(SOURCES)
        .filter(|path| Path::new(path).exists())
    {
        println!("cargo::rerun-if-changed={path}");
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    let changed = [
        &["status", "--porcelain", "--untracked-files=all", "--"],
        &SOURCES[..],
    ]
    .concat();
    match git(&changed)?.is_empty() {
        true => Some(commit),
        false => Some(format!("{commit}-modified")),
    }
}

/// What a command of git prints.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
