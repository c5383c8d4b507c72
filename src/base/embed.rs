//! Lists the files of a folder for embedding: adding a definition, a map or a format of tool calls adds a file.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Writes the names and texts of the files of a folder at the top of the repository, and what they share, as constants: one for the files
/// of each ending. The file with them is called like the first one.
///
/// # Panics
/// The files are not part of the source tree, or cannot be written.
pub(crate) fn embed(folder: &str, kinds: &[(&str, &str)]) {
    let own = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let path = Path::new(&own).join("../..").join(folder);
    println!("cargo::rerun-if-changed={}", path.display());
    let mut names: Vec<String> = fs::read_dir(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();

    let mut code = String::new();
    for (ending, constant) in kinds {
        writeln!(code, "const {constant}: &[(&str, &str)] = &[").expect("a String takes any text");
        for name in names.iter().filter_map(|name| name.strip_suffix(ending)) {
            let path = path.join(format!("{name}{ending}"));
            println!("cargo::rerun-if-changed={}", path.display());
            writeln!(code, "    ({name:?}, include_str!({path:?})),")
                .expect("a String takes any text");
        }
        writeln!(code, "];").expect("a String takes any text");
    }
    // Files of one kind may share a file of that kind instead.
    let (ending, first) = kinds[0];
    if !path.join(format!("common{ending}")).exists() {
        let common = path.join("common.toml");
        println!("cargo::rerun-if-changed={}", common.display());
        writeln!(
            code,
            "const EMBEDDED_COMMON: &str = include_str!({common:?});"
        )
        .expect("a String takes any text");
    }
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out).join(format!("{}.rs", first.to_lowercase()));
    fs::write(out, code).expect("OUT_DIR is writable");
}
