//! `bench --version`: what the program was built from and for. Not here: the facts (`lab_base::ggml::build_info`).

use std::fmt::Write;

use lab_base::ggml::{
    MARCH_VARIABLE, build_info, machine_instruction_sets, missing_instruction_sets, set_program,
};

use super::Failure;

/// The optional parts of the program, of which others are told once.
const FEATURES: &[&str] = &[
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "kv-events")]
    "kv-events",
    #[cfg(feature = "metal")]
    "metal",
    #[cfg(feature = "otel")]
    "otel",
    #[cfg(feature = "png")]
    "png",
    #[cfg(feature = "vulkan")]
    "vulkan",
];

/// Tells the packages below of the program.
pub(super) fn register() {
    set_program(env!("PROGRAM_COMMIT"), FEATURES);
}

/// Of `--version`. The first line has the version alone, for scripts.
pub(super) fn long() -> String {
    let info = build_info();
    let or = |text: &str, none: &str| match text {
        "" => none.to_owned(),
        text => text.to_owned(),
    };
    let features = or(&info.features.join(" "), "none");
    let sets = or(
        &info.computes_with().join(" "),
        "those of every processor of this kind",
    );
    let here = or(
        &machine_instruction_sets().join(" "),
        "none that ggml has code for",
    );
    let mut text = format!("{}\n", info.version);
    for (name, fact) in [
        (
            "commit",
            or(
                info.commit,
                "not known (a development build, or sources without git)",
            ),
        ),
        ("ggml", info.ggml.trim_start_matches("ggml ").to_owned()),
        ("target", info.target.to_owned()),
        ("features", features),
        ("built for", info.marches.join(", ")),
        ("computes", format!("{}: {sets}", info.march)),
        ("machine", here),
    ] {
        let _ = write!(text, "\n{name:<10}{fact}");
    }
    let missing = missing_instruction_sets();
    if !missing.is_empty() {
        let _ = write!(text, "\nmissing   {}", missing.join(" "));
    }
    text
}

/// Refuses to compute on a processor without the instructions of the program: the first of them would end the process. Refuses what
/// `BENCH_MARCH` names if the program does not compute with it.
///
/// # Errors
/// The processor lacks instruction sets, or the variable names another one than those that it runs.
pub(super) fn check_machine() -> Result<(), Failure> {
    let info = build_info();
    let missing = missing_instruction_sets();
    if !missing.is_empty() {
        let more = match info.marches.len() {
            1 => "",
            _ => " and better ones",
        };
        anyhow::bail!(
            "this program was built for {} processors{more}, and that of this machine lacks {}; one that is built on this machine runs \
             here (docs/install.md)",
            info.march,
            missing.join(", ")
        )
    }
    match std::env::var(MARCH_VARIABLE) {
        Ok(named) if !named.is_empty() && named != info.march => anyhow::bail!(
            "{MARCH_VARIABLE}: `{named}` is not an instruction set of this program which this processor has: the program was built for \
             {}, and computes with {} here",
            info.marches.join(", "),
            info.march
        ),
        _ => Ok(()),
    }
}
