//! The `bench` program: parse, run, print one error, exit code 0, 1 (failed) or 2 (usage).

use std::io::Write;
use std::process::ExitCode;

use lab_bench::cli::{is_closed_pipe, parse, run};

fn main() -> ExitCode {
    match parse().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if is_closed_pipe(&failure) => ExitCode::SUCCESS,
        Err(failure) => {
            let text = failure.to_string();
            // Problems of a definition come with their own heading, perhaps in colour.
            let has_heading = text.starts_with("error: ") || text.starts_with('\u{1b}');
            let heading = if has_heading { "" } else { "error: " };
            // Where it cannot be written, on a full disk perhaps, the exit code is all there is.
            let _ = writeln!(std::io::stderr(), "{heading}{text}");
            ExitCode::FAILURE
        }
    }
}
