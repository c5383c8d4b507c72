//! A program with the code that computes for several instruction sets, on x86-64 with ELF objects. That of each set becomes one object,
//! whose functions have the name of the set in theirs. `src/variants.c` defines each function under its own name, as a jump
//! into the set that is chosen before `main`.
//!
//! All other symbols of such an object are local. Functions of C++ templates have the same name in all objects, and the linker would take one for
//! the whole program, perhaps one with instructions that the machine lacks.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The instruction sets of `GGML_MARCH=all`, the least first. Kernels use each that is not in the one before.
pub(crate) const ALL: &[&str] = &[
    "x86-64-v2",
    "x86-64-v3",
    "x86-64-v4",
    "x86-64-v4+avx512vnni",
    "x86-64-v4+avx512vnni+avx512bf16",
];

/// Of everything else in a program with several: what every processor has.
pub(crate) const LOWEST: &str = "x86-64";

/// Chooses. Includes `variants.h`, which `link` writes.
pub(crate) const CHOICE_FILE: &str = "src/variants.c";

/// The flags of the compiler for an instruction set.
pub(crate) fn flags(march: &str) -> Vec<String> {
    // For ARM the compiler itself reads `+`.
    match march.split_once('+') {
        Some((base, more)) if march.starts_with("x86-64") => {
            let more = more.split('+').map(|set| format!("-m{set}"));
            std::iter::once(format!("-march={base}"))
                .chain(more)
                .collect()
        }
        _ => vec![format!("-march={march}")],
    }
}

/// The instruction set as a part of names in C.
pub(crate) fn suffix(march: &str) -> String {
    march.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}

/// Makes one object of the objects of each instruction set, and writes `variants.h` into `out`.
///
/// # Panics
/// The target is another, a tool of binutils fails, or something of an object runs before `main`.
pub(crate) fn link(
    compiler: &cc::Tool,
    compiled: Vec<(&str, Vec<PathBuf>)>,
    out: &Path,
) -> Vec<PathBuf> {
    let target = env::var("TARGET").unwrap_or_default();
    assert!(
        target.starts_with("x86_64-") && target.contains("-linux-gnu"),
        "GGML_MARCH: several instruction sets are for x86-64 Linux with glibc, not for {target}"
    );
    let tools = Tools { compiler };
    let linked = compiled.iter().map(|(march, objects)| {
        let whole = out.join(format!("{}-whole.o", suffix(march)));
        // Groups are what the linker merges by name.
        let mut command = compiler.to_command();
        command.args(["-r", "-nostdlib", "-Wl,--force-group-allocation", "-o"]);
        run(command.arg(&whole).args(objects));
        tools.check_runs_nothing(&whole);
        (*march, tools.functions(&whole), whole)
    });
    let linked: Vec<_> = linked.collect();
    let shared = linked
        .iter()
        .map(|(_, functions, _)| functions.clone())
        .reduce(|all, of| &all & &of)
        .unwrap_or_default();
    write_header(&compiled, &shared, out);
    let renamed = linked.iter().map(|(march, _, whole)| {
        let suffix = suffix(march);
        let mut kept = String::new();
        let mut names = String::new();
        for function in &shared {
            let _ = writeln!(kept, "{function}__{suffix}");
            let _ = writeln!(names, "{function} {function}__{suffix}");
        }
        let list = |name: &str, text: &str| {
            let path = out.join(format!("{suffix}-{name}.txt"));
            std::fs::write(&path, text).expect("OUT_DIR is writable");
            path
        };
        let object = out.join(format!("{suffix}.o"));
        let mut command = tools.named("objcopy");
        command.arg(with("--keep-global-symbols=", &list("kept", &kept)));
        command.arg(with("--redefine-syms=", &list("names", &names)));
        run(command.arg(whole).arg(&object));
        let left = tools.defined(&object);
        let foreign = left.iter().find(|(_, name)| !name.ends_with(&suffix));
        assert!(foreign.is_none(), "{march}: {foreign:?} is not local");
        assert_eq!(left.len(), shared.len(), "{march}");
        object
    });
    renamed.collect()
}

/// Lists of the instruction sets and functions for `src/variants.c`.
fn write_header(compiled: &[(&str, Vec<PathBuf>)], functions: &BTreeSet<String>, out: &Path) {
    let mut text = String::from("#define VARIANTS(X)");
    for (march, _) in compiled {
        let _ = write!(text, " \\\n    X(\"{march}\", {})", suffix(march));
    }
    text.push_str("\n\n#define FUNCTIONS(X, suffix)");
    for (i, function) in functions.iter().enumerate() {
        let _ = write!(text, " \\\n    X({i}, {function}, suffix)");
    }
    let _ = write!(text, "\n\n#define N_FUNCTIONS {}\n", functions.len());
    std::fs::write(out.join("variants.h"), text).expect("OUT_DIR is writable");
}

/// The tools of the compiler's binutils.
struct Tools<'c> {
    compiler: &'c cc::Tool,
}

impl Tools<'_> {
    fn named(&self, name: &str) -> Command {
        let mut asked = self.compiler.to_command();
        let path = run(asked.arg(format!("-print-prog-name={name}")));
        Command::new(path.trim())
    }

    /// Kinds and names of the symbols that other objects see.
    fn defined(&self, object: &Path) -> Vec<(String, String)> {
        let mut command = self.named("nm");
        command.args(["--defined-only", "--extern-only", "--format=posix"]);
        let listed = run(command.arg(object));
        let pairs = listed.lines().filter_map(|line| {
            let mut words = line.split(' ');
            let name = words.next()?.to_owned();
            Some((words.next()?.to_owned(), name))
        });
        pairs.collect()
    }

    /// The functions with names of C.
    fn functions(&self, object: &Path) -> BTreeSet<String> {
        let all = self.defined(object).into_iter();
        all.filter(|(kind, name)| kind == "T" && !name.starts_with("_Z"))
            .map(|(_, name)| name)
            .collect()
    }

    /// What runs before `main` would run on every processor.
    fn check_runs_nothing(&self, object: &Path) {
        let sections = run(self.named("objdump").arg("-h").arg(object));
        for section in [".init_array", ".preinit_array", ".ctors"] {
            assert!(
                !sections.contains(section),
                "{}: {section}: code of one instruction set would run before one is chosen",
                object.display()
            );
        }
    }
}

fn with(option: &str, path: &Path) -> std::ffi::OsString {
    let mut text = OsStr::new(option).to_owned();
    text.push(path);
    text
}

/// Runs a command; what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
