//! Lists the definitions of `archs/` for embedding: adding a file adds an architecture.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=archs");
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let archs = Path::new(&root).join("archs");
    let mut names: Vec<String> = fs::read_dir(&archs)
        .expect("archs/ is part of the source tree")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".arch.toml").map(str::to_owned))
        .collect();
    names.sort();

    let mut code = String::from("const EMBEDDED_ARCHS: &[(&str, &str)] = &[\n");
    for name in names {
        let path = archs.join(format!("{name}.arch.toml"));
        println!("cargo::rerun-if-changed={}", path.display());
        writeln!(code, "    ({name:?}, include_str!({path:?})),").expect("a String takes any text");
    }
    let common = archs.join("common.toml");
    println!("cargo::rerun-if-changed={}", common.display());
    writeln!(
        code,
        "];\nconst EMBEDDED_COMMON: &str = include_str!({common:?});"
    )
    .expect("a String takes any text");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("embedded_archs.rs"), code).expect("OUT_DIR is writable");
}
