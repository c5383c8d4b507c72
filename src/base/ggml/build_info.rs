//! What this program was built from and for, and whether this machine can run it: `bench --version`, the metrics of a server.

use std::sync::OnceLock;

use ggml_sys as sys;

use super::c_text::text;

/// Environment variable: the instruction set to compute with, of those of the program.
pub const MARCH_VARIABLE: &str = "BENCH_MARCH";

/// What the program alone knows. Packages below it do not have its commit, or each commit would have them compiled again.
static PROGRAM: OnceLock<(&'static str, &'static [&'static str])> = OnceLock::new();

/// What this program was built from and for.
#[derive(Clone, Debug)]
pub struct BuildInfo {
    /// The version of the packages.
    pub version: &'static str,
    /// The commit of the sources, with `-modified` where they had other changes; empty if it is not known.
    pub commit: &'static str,
    /// Version and origin of ggml.
    pub ggml: &'static str,
    /// The triple that it was compiled for.
    pub target: &'static str,
    /// The optional parts that it has, as cargo names them.
    pub features: &'static [&'static str],
    /// The instruction sets that it has computations for, as compilers name them, the least first.
    pub marches: Vec<&'static str>,
    /// The one of these that it computes with: the last that this machine's processor runs, or what `BENCH_MARCH` names.
    pub march: &'static str,
    /// The instruction sets that its computations use, besides those that every processor of the kind has.
    pub instruction_sets: Vec<&'static str>,
    /// Those that it uses because this machine's processor has them, whatever it was compiled for.
    pub optional_sets: Vec<&'static str>,
}

impl BuildInfo {
    /// All instruction sets that computations use.
    pub fn computes_with(&self) -> Vec<&'static str> {
        [&self.instruction_sets[..], &self.optional_sets].concat()
    }

    /// The version, and the commit where it is known.
    pub fn version_text(&self) -> String {
        match self.commit {
            "" => self.version.to_owned(),
            commit => format!("{} ({commit})", self.version),
        }
    }
}

/// Says from which commit the program was built, and which features it has. Only the first call counts.
pub fn set_program(commit: &'static str, features: &'static [&'static str]) {
    let _ = PROGRAM.set((commit, features));
}

/// What this program was built from and for.
pub fn build_info() -> BuildInfo {
    let (commit, features) = PROGRAM.get().copied().unwrap_or_default();
    // SAFETY: the functions take nothing and return static strings.
    let (march, compiled) =
        unsafe { (text(sys::shim_march()), text(sys::shim_instruction_sets())) };
    let compiled: Vec<&str> = compiled.split_whitespace().collect();
    let marches: Vec<&str> = sys::MARCH.split(',').collect();
    let known = known_instruction_sets().into_iter().map(|(name, _)| name);
    BuildInfo {
        version: env!("CARGO_PKG_VERSION"),
        commit,
        ggml: sys::IDENTITY,
        target: sys::TARGET,
        features,
        march: marches
            .iter()
            .find(|one| **one == march)
            .copied()
            .unwrap_or_default(),
        marches,
        instruction_sets: known.filter(|name| compiled.contains(name)).collect(),
        // SAFETY: the function asks the processor and the system.
        optional_sets: match unsafe { sys::shim_use_tiles(-1) } {
            0 => Vec::new(),
            _ => vec!["amx-int8"],
        },
    }
}

/// The instruction sets of this machine's processor, of those that ggml has code for.
pub fn machine_instruction_sets() -> Vec<&'static str> {
    let known = known_instruction_sets().into_iter();
    known
        .filter(|(_, has)| *has)
        .map(|(name, _)| name)
        .collect()
}

/// The instruction sets that the program needs and this machine's processor lacks.
pub fn missing_instruction_sets() -> Vec<&'static str> {
    let here = machine_instruction_sets();
    let mut needed = build_info().instruction_sets;
    needed.retain(|name| !here.contains(name));
    needed
}

/// Instruction sets by the names that Rust has for them, and whether this machine's processor has each.
macro_rules! detected {
    ($detect:ident: $($name:tt)*) => {
        vec![$(($name, std::arch::$detect!($name))),*]
    };
}

#[cfg(target_arch = "x86_64")]
fn known_instruction_sets() -> Vec<(&'static str, bool)> {
    detected!(is_x86_feature_detected:
        "sse3" "ssse3" "sse4.1" "sse4.2" "avx" "avx2" "bmi1" "bmi2" "f16c" "fma" "lzcnt" "movbe" "avxvnni"
        "avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl" "avx512vbmi" "avx512vnni" "avx512bf16")
}

#[cfg(target_arch = "aarch64")]
fn known_instruction_sets() -> Vec<(&'static str, bool)> {
    detected!(is_aarch64_feature_detected: "neon" "dotprod" "fp16" "i8mm" "bf16" "sve")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn known_instruction_sets() -> Vec<(&'static str, bool)> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_compiled_instruction_set_has_a_name_here_and_is_one_of_this_machine() {
        // SAFETY: the function takes nothing and returns a static string.
        let compiled = unsafe { text(sys::shim_instruction_sets()) };
        let names: Vec<&str> = compiled.split_whitespace().collect();
        assert_eq!(build_info().instruction_sets, names);
        assert_eq!(missing_instruction_sets(), Vec::<&str>::new());
    }
}
