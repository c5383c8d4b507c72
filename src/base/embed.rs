//! Lists the files of a folder for embedding: adding a definition, a map or a format of tool calls adds a file.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Writes the names and texts of the files of a folder at the top of the repository as a constant, and what they share as another one if
/// it is in a file without their ending.
///
/// # Panics
/// The files are not part of the source tree, or cannot be written.
pub(crate) fn embed(folder: &str, ending: &str, constant: &str) {
    let own = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let path = Path::new(&own).join("../..").join(folder);
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
    code.push_str("];\n");
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
    let out = Path::new(&out).join(format!("{}.rs", constant.to_lowercase()));
    fs::write(out, code).expect("OUT_DIR is writable");
}
