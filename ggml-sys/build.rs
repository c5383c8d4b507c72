//! Compiles ggml's CPU backend from the sources that the registry crate named in Cargo.toml
//! carries, with the C and C++ compiler alone; backends for GPUs that features ask for with CMake.
//!
//! Environment:
//! - `GGML_SOURCE_DIR`: another ggml checkout (the folder with `include/` and `src/`).
//! - `GGML_MARCH`: the instruction set, as `-march=` names it, on x86-64 also with `+` and the names of further ones (`x86-64-v4+avx512vnni`).
//!   Several with commas between: the program has the code for each, and takes the last that runs on its machine (`variants.rs`); `all` is
//!   `variants::all`. Default: `native`; for another kind of processor than that of this machine, what `CROSS_MARCH` says.
//! - `GGML_SANITIZE`: sanitizers, as `-fsanitize=` names them (`make sanitize`). Default none.
//! - `CUDAARCHS`: the GPUs that feature `cuda` builds for, as CMake names them. Default: those of this machine.

mod gpu;
mod variants;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The instruction sets for other machines' processors: those of the last ten years.
const CROSS_MARCH: &[(&str, &str)] = &[
    ("x86_64", "x86-64-v3"),
    ("aarch64", "armv8.2-a+dotprod+fp16"),
];

/// The crate whose package carries ggml.
const SOURCE_CRATE: &str = "llama-cpp-sys-2";

/// Of graphs and their memory. Compiled once.
const C_FILES: &[&str] = &["ggml.c", "ggml-alloc.c"];
const OWN_C_FILES: &[&str] = &["src/shim.c", "src/devices.c"];

/// What computes, with the files below: compiled for each instruction set.
const CPU_C_FILES: &[&str] = &["ggml-quants.c", "ggml-cpu/quants.c"];
const OWN_CPU_C_FILES: &[&str] = &[
    "src/attention.c",
    "src/select.c",
    "src/sort.c",
    "src/convolve.c",
    "src/gelu.c",
    "src/multiply.c",
    "src/norm.c",
    "src/barrier.c",
    "src/instruction_sets.c",
];

/// Compiled separately, with ggml's `ggml-cpu.c` in it: that calls functions of this project in place of ggml's.
const DISPATCH_FILE: &str = "src/dispatch.c";
/// Sorts whose order is total (`src/sort.c`), and what is faster here: a product (`src/multiply.c`), norms (`src/norm.c`), and
/// the rounding of columns (`src/matmul/round.c`).
const REPLACED: &[(&str, &str)] = &[
    ("ggml_compute_forward_argsort", "sort_rows"),
    ("ggml_compute_forward_top_k", "select_rows"),
    ("ggml_compute_forward_mul", "multiply_elements"),
    ("ggml_compute_forward_rms_norm", "norm_rms"),
    ("ggml_compute_forward_rms_norm_mul_fused", "norm_rms_times"),
    ("quantize_row_q8_K", "round_to_q8_K"),
];
/// Matrix products, where ggml has these helpers: the products call them (`ggml-cpu/tiled/`) for types that they have no
/// kernels for.
const REPLACED_PRODUCTS: &[(&str, &str)] = &[
    ("ggml_compute_forward_mul_mat_tiled", "matmul_product"),
    ("ggml_compute_forward_mul_mat_id_tiled", "matmul_expert"),
    ("ggml_tiled_wdata_size", "matmul_work_size"),
];

/// The matrix products of this project. Terms are added in the written order, so the compiler must not
/// fuse multiplications and additions on its own.
const MATMUL_FILES: &[&str] = &[
    "matmul.c",
    "float.c",
    "pack.c",
    "pack32.c",
    "pack_low.c",
    "quant.c",
    "alone.c",
    "interleave.c",
    "round.c",
];

/// Compiled separately.
const CPP_FILES: &[&str] = &[
    "ggml-cpu/ops.cpp",
    "ggml-cpu/tiled/tiled.cpp",
    "ggml-cpu/tiled/tiled-kernel.cpp",
];

/// Compiled as one file: their headers take as long as they do themselves.
const SMALL_CPP_FILES: &[&str] = &[
    "ggml-cpu/amx/amx.cpp",
    "ggml-cpu/amx/mmq.cpp",
    "ggml-cpu/binary-ops.cpp",
    "ggml-cpu/ggml-cpu.cpp",
    "ggml-cpu/hbm.cpp",
    "ggml-cpu/traits.cpp",
    "ggml-cpu/unary-ops.cpp",
    "ggml-cpu/vec.cpp",
];

/// Compiled separately and once, with ggml's `ggml-backend.cpp` in it.
const SCHEDULER_FILE: &str = "src/scheduler.cpp";

/// Products of matrices for machines on which `matmul/` has no kernels.
const SGEMM_FILE: &str = "ggml-cpu/llamafile/sgemm.cpp";

/// Compiled as one file, once. No numbers are computed in these.
const UNHURRIED_FILES: &[&str] = &[
    "ggml.cpp",
    "ggml-threading.cpp",
    "ggml-backend-dl.cpp",
    "ggml-backend-meta.cpp",
    "ggml-backend-reg.cpp",
    "ggml-rpc/ggml-rpc.cpp",
];

/// Compiled separately: `RPC_DEBUG` is a name in `ggml-rpc.cpp` too.
const TRANSPORT_FILE: &str = "ggml-rpc/transport.cpp";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=gpu.rs");
    println!("cargo::rerun-if-changed=backend");
    println!("cargo::rerun-if-changed=cuda");
    for file in OWN_C_FILES.iter().chain(OWN_CPU_C_FILES) {
        println!("cargo::rerun-if-changed={file}");
    }
    for header in [
        "attention",
        "barrier",
        "convolve",
        "gelu",
        "kv",
        "select",
        "shim",
        "sort",
        "vec",
    ] {
        println!("cargo::rerun-if-changed=src/{header}.h");
    }
    println!("cargo::rerun-if-changed={DISPATCH_FILE}");
    println!("cargo::rerun-if-changed={SCHEDULER_FILE}");
    println!("cargo::rerun-if-changed={}", variants::CHOICE_FILE);
    println!("cargo::rerun-if-changed=variants.rs");
    println!("cargo::rerun-if-changed=src/matmul");
    println!("cargo::rerun-if-env-changed=GGML_SOURCE_DIR");
    println!("cargo::rerun-if-env-changed=GGML_MARCH");
    println!("cargo::rerun-if-env-changed=GGML_SANITIZE");
    println!("cargo::rerun-if-env-changed=CUDAARCHS");

    let (ggml, origin) = ggml_folder();
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let version = write_version_header(&ggml, &out);
    // As in scripts/backend.sh.
    println!("cargo::rustc-env=GGML_IDENTITY=ggml {version} of {origin}");
    // For tests/programs.rs.
    println!(
        "cargo::rustc-env=GGML_INCLUDE={}",
        ggml.join("include").display()
    );
    println!("cargo::rustc-env=GGML_LIBRARY={}", out.display());
    println!(
        "cargo::rustc-env=BENCH_TARGET={}",
        env::var("TARGET").expect("cargo sets TARGET")
    );
    let march = march();
    println!("cargo::rustc-env=GGML_MARCH_USED={march}");
    let backends = gpu::wanted();
    println!("cargo::metadata=include={}", ggml.join("include").display());

    let several: Vec<&str> = march.split(',').collect();
    // What runs before an instruction set is chosen, and says that there is none for a processor.
    let lowest = match several.len() {
        1 => march.as_str(),
        _ => variants::lowest(several[0]),
    };
    let source = ggml.join("src");
    let mut c = compiler(&ggml, &out, lowest);
    c.std("c11");
    c.files(C_FILES.iter().map(|file| source.join(file)));
    c.files(OWN_C_FILES);
    let mut cpp = compiler(&ggml, &out, lowest);
    cpp.cpp(true).std("c++17").file(SCHEDULER_FILE);
    let mut unhurried = compiler(&ggml, &out, lowest);
    unhurried.cpp(true).std("c++17").opt_level(1);
    unhurried.files(together(&source, UNHURRIED_FILES, &out, "unhurried.cpp"));
    unhurried.file(source.join(TRANSPORT_FILE));
    for backend in &backends {
        unhurried.define(backend.define, None);
    }

    // Before all other libraries, whose memory they watch. rustc has the linker add none of its own.
    for (sanitizer, library) in [("address", "asan"), ("undefined", "ubsan")] {
        if sanitizers().is_some_and(|list| list.split(',').any(|one| one == sanitizer)) {
            println!("cargo::rustc-link-lib={library}");
        }
    }

    // One archive: its parts call each other.
    match several[..] {
        [one] => {
            cpp.objects(compute_objects(&ggml, &out, &out, one));
        }
        _ => {
            let compiled = several.iter().map(|one| {
                let folder = out.join(variants::suffix(one));
                std::fs::create_dir_all(&folder).expect("OUT_DIR is writable");
                (*one, compute_objects(&ggml, &out, &folder, one))
            });
            cpp.objects(variants::link(&c.get_compiler(), compiled.collect(), &out));
            c.file(variants::CHOICE_FILE);
        }
    }
    cpp.objects(c.compile_intermediates());
    cpp.objects(unhurried.compile_intermediates());
    // Whole: a backend that is loaded at run time calls functions that the program itself does not.
    cpp.link_lib_modifier("+whole-archive");
    cpp.compile("ggml");
    if several.len() > 1 {
        // What the compiler asks about the processor.
        println!("cargo::rustc-link-lib=gcc");
    }
    for backend in &backends {
        backend.build(&ggml, &out);
    }
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-link-lib=pthread");
        println!("cargo::rustc-link-lib=dl");
        println!("cargo::rustc-link-lib=m");
    }
}

/// Compiles what computes for an instruction set, into `folder`.
fn compute_objects(ggml: &Path, out: &Path, folder: &Path, march: &str) -> Vec<PathBuf> {
    let source = ggml.join("src");
    let compiler = || {
        let mut build = compiler(ggml, out, march);
        build.out_dir(folder);
        build
    };
    let mut c = compiler();
    c.std("c11");
    c.define("GGML_MARCH_NAME", format!("\"{march}\"").as_str());
    c.files(CPU_C_FILES.iter().map(|file| source.join(file)));
    c.files(OWN_CPU_C_FILES);
    let mut cpp = compiler();
    // Symbols of that kind cannot be made local (variants.rs).
    cpp.cpp(true)
        .std("c++17")
        .flag_if_supported("-fno-gnu-unique");
    cpp.files(CPP_FILES.iter().map(|file| source.join(file)));
    cpp.files(together(&source, SMALL_CPP_FILES, out, "small.cpp"));
    if !has_own_products(march) {
        cpp.file(source.join(SGEMM_FILE));
    }
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => Some("x86"),
        Ok("aarch64") => Some("arm"),
        _ => None,
    };
    if let Some(arch) = arch {
        c.file(source.join("ggml-cpu/arch").join(arch).join("quants.c"));
    }
    let mut dispatch = compiler();
    dispatch.std("c11").file(DISPATCH_FILE);
    let mut matmul = compiler();
    matmul.std("c11").flag_if_supported("-ffp-contract=off");
    matmul.files(
        MATMUL_FILES
            .iter()
            .map(|file| Path::new("src/matmul").join(file)),
    );
    let has_products = source.join("ggml-cpu/tiled/tiled.h").is_file();
    let products = REPLACED_PRODUCTS.iter().filter(|_| has_products);
    for (theirs, ours) in REPLACED.iter().chain(products) {
        dispatch.define(theirs, *ours);
    }
    if arch.is_none() {
        c.define("GGML_CPU_GENERIC", None);
        cpp.define("GGML_CPU_GENERIC", None);
    }
    [c, cpp, dispatch, matmul]
        .iter()
        .flat_map(cc::Build::compile_intermediates)
        .collect()
}

/// Flags common to C and C++. Always optimised: a debug build of this program still computes.
fn compiler(ggml: &Path, out: &Path, march: &str) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .include(ggml.join("include"))
        .include(ggml.join("src"))
        .include(ggml.join("src/ggml-cpu"))
        .include(out)
        .include("src")
        .opt_level(3)
        .debug(false)
        .warnings(false)
        .define("NDEBUG", None)
        .define("_GNU_SOURCE", None)
        .define("_XOPEN_SOURCE", "600")
        .define("GGML_SCHED_MAX_COPIES", "4")
        .define("GGML_USE_CPU", None)
        .flag_if_supported("-fno-finite-math-only");
    // Another compiler's `native` may be unknown; a name that was asked for, or is the default of a package, has to be known.
    match march {
        "native" => {
            build.flag_if_supported("-march=native");
        }
        named => {
            for flag in variants::flags(named) {
                build.flag(flag);
            }
        }
    }
    // ggml computes with these instructions only where weights are stored in a layout of their own, in which the project stores none.
    for flag in ["-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16"] {
        build.flag_if_supported(flag);
    }
    if !has_own_products(march) {
        build.define("GGML_USE_LLAMAFILE", None);
    }
    if let Some(list) = sanitizers() {
        // A finding ends the process, and names a line. With checks in them, unrolled loops take minutes to optimise.
        build.opt_level(1);
        build.flag(format!("-fsanitize={list}"));
        build.flag("-fno-sanitize-recover=all");
        build.flag("-fno-omit-frame-pointer").flag("-g1");
    }
    build
}

/// A file in `out` that includes `files`. Files of another checkout may share names, so those are returned as they are.
fn together(source: &Path, files: &[&str], out: &Path, name: &str) -> Vec<PathBuf> {
    let paths = files.iter().map(|file| source.join(file));
    if env::var_os("GGML_SOURCE_DIR").is_some() {
        return paths.collect();
    }
    let includes: String = paths
        .map(|path| format!("#include \"{}\"\n", path.display()))
        .collect();
    let whole = out.join(name);
    std::fs::write(&whole, includes).expect("OUT_DIR is writable");
    vec![whole]
}

/// The instruction sets to compile for, with commas between.
fn march() -> String {
    let arch = |variable| {
        let triple = env::var(variable).unwrap_or_default();
        triple.split('-').next().unwrap_or_default().to_owned()
    };
    let named = env::var("GGML_MARCH").unwrap_or_else(|_| {
        let (target, host) = (arch("TARGET"), arch("HOST"));
        let cross = CROSS_MARCH.iter().find(|(arch, _)| *arch == target);
        match cross.filter(|_| target != host) {
            Some((_, march)) => (*march).to_owned(),
            None => "native".into(),
        }
    });
    match named.as_str() {
        "all" => variants::all(&arch("TARGET")).join(","),
        _ => named,
    }
}

/// Whether the instruction set has all that the kernels of `matmul/` need, which are faster than ggml's for the same types.
fn has_own_products(march: &str) -> bool {
    match march.split('+').next().unwrap_or_default() {
        #[cfg(target_arch = "x86_64")]
        "native" => {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        }
        name => ["x86-64-v3", "x86-64-v4"].contains(&name),
    }
}

fn sanitizers() -> Option<String> {
    env::var("GGML_SANITIZE")
        .ok()
        .filter(|list| !list.is_empty())
}

/// The folder that holds ggml's `include/` and `src/`, and what names its contents.
fn ggml_folder() -> (PathBuf, String) {
    if let Ok(folder) = env::var("GGML_SOURCE_DIR") {
        let folder = PathBuf::from(folder);
        assert!(
            folder.join("include/ggml.h").is_file(),
            "GGML_SOURCE_DIR: no include/ggml.h in {}",
            folder.display()
        );
        let whole = folder.canonicalize().expect("it is there");
        return (folder, whole.display().to_string());
    }
    let (manifest, version) = source_crate();
    let folder = manifest.with_file_name("llama.cpp").join("ggml");
    assert!(
        folder.join("include/ggml.h").is_file(),
        "no ggml sources in {}",
        folder.display()
    );
    (folder, format!("{SOURCE_CRATE} {version}"))
}

/// Asks cargo where it unpacked the source crate, and of which version it is.
fn source_crate() -> (PathBuf, String) {
    let manifest =
        Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
            .join("Cargo.toml");
    let output = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--all-features",
            "--manifest-path",
        ])
        .arg(&manifest)
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "cargo metadata failed, so ggml's sources cannot be found:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == SOURCE_CRATE)
        .and_then(|package| {
            let text = |key: &str| Some(package[key].as_str()?.to_owned());
            Some((PathBuf::from(text("manifest_path")?), text("version")?))
        })
        .unwrap_or_else(|| panic!("cargo metadata names no package {SOURCE_CRATE}"))
}

/// ggml's own build writes this header from a template; the version, which is returned, stands in its
/// CMakeLists.
fn write_version_header(ggml: &Path, out: &Path) -> String {
    let cmake = std::fs::read_to_string(ggml.join("CMakeLists.txt")).unwrap_or_default();
    let part = |name: &str| {
        let key = format!("set(GGML_VERSION_{name} ");
        let rest = cmake.split_once(&key).map_or("", |(_, rest)| rest);
        rest.split(')').next().unwrap_or_default().trim().to_owned()
    };
    let version = format!("{}.{}.{}", part("MAJOR"), part("MINOR"), part("PATCH"));
    let text = format!(
        "#pragma once\n#define GGML_VERSION \"{version}\"\n#define GGML_COMMIT \"registry\"\n"
    );
    std::fs::write(out.join("ggml-version.h"), text).expect("OUT_DIR is writable");
    version
}
