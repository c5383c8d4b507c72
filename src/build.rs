//! Lists the definitions of `archs/`, the maps of `stmaps/` and the formats of `tools/` for embedding:
//! adding a file adds an architecture, a kind of folder, or a way in which models write tool calls.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The build script of `lab-base` and of `lab-core`, and of the package that has the tests of both.
///
/// # Panics
///
/// If the files are not part of the source tree, or cannot be written.
pub(crate) fn main() {
    let package = env::var("CARGO_PKG_NAME").expect("cargo sets CARGO_PKG_NAME");
    if package != "lab-core" {
        embed("tools", ".tool.toml", "EMBEDDED_TOOLS");
    }
    if package != "lab-base" {
        embed("archs", ".arch.toml", "EMBEDDED_ARCHS");
        embed("stmaps", ".arch.stmap.toml", "EMBEDDED_STMAPS");
    }
}

/// Writes the names and texts of a folder's files, and what they share, as constants.
fn embed(folder: &str, ending: &str, constant: &str) {
    let own = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let mut above = Path::new(&own).ancestors().map(|above| above.join(folder));
    let path = above
        .find(|path| path.is_dir())
        .unwrap_or_else(|| panic!("{folder}/ is part of the source tree"));
    println!("cargo::rerun-if-changed={}", path.display());
    let mut names: Vec<String> = fs::read_dir(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(ending).map(str::to_owned))
        .collect();
    names.sort();

    let mut code = format!("const {constant}: &[(&str, &str)] = &[\n");
    for name in names {
        let path = path.join(format!("{name}{ending}"));
        println!("cargo::rerun-if-changed={}", path.display());
        writeln!(code, "    ({name:?}, include_str!({path:?})),").expect("a String takes any text");
    }
    let common = path.join("common.toml");
    println!("cargo::rerun-if-changed={}", common.display());
    writeln!(
        code,
        "];\nconst EMBEDDED_COMMON: &str = include_str!({common:?});"
    )
    .expect("a String takes any text");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out).join(format!("embedded_{folder}.rs"));
    fs::write(out, code).expect("OUT_DIR is writable");
}
