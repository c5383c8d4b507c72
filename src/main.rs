//! The `bench` program: parse, run, print one error, exit code 0, 1 (failed), 2 (usage) or 3 (incomplete).

use std::io::Write;

use lab_base::ggml::end_process;
use lab_bench::cli::{exit_code, is_closed_pipe, parse, run};

fn main() -> ! {
    let code = match parse().and_then(run) {
        Ok(()) => 0,
        Err(failure) if is_closed_pipe(&failure) => 0,
        Err(failure) => {
            let text = failure.to_string();
            // Problems of a definition come with their own heading, perhaps in colour.
            let has_heading = text.starts_with("error: ") || text.starts_with('\u{1b}');
            let heading = if has_heading { "" } else { "error: " };
            // Where it cannot be written, on a full disk perhaps, the exit code is all there is.
            let _ = writeln!(std::io::stderr(), "{heading}{text}");
            exit_code(&failure)
        }
    };
    // Where it cannot be written, what was printed before was reported.
    let _ = std::io::stdout().flush();
    end_process(code)
}
