//! The `bench` program: parse, run, print one error, exit code 0, 1 (failed) or 2 (usage).

use std::process::ExitCode;

use lab_bench::cli::{is_closed_pipe, parse, run};

fn main() -> ExitCode {
    match parse().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if is_closed_pipe(&failure) => ExitCode::SUCCESS,
        Err(failure) => {
            #[expect(clippy::print_stderr, reason = "the one error of the program")]
            {
                let text = failure.to_string();
                // Problems of a definition come with their own heading, perhaps in colour.
                let has_heading = text.starts_with("error: ") || text.starts_with('\u{1b}');
                eprintln!("{}{text}", if has_heading { "" } else { "error: " });
            }
            ExitCode::FAILURE
        }
    }
}
