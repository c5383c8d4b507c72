//! What commands read: up to a limit, whatever a path leads to, and one bad line is one error.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::command::{check_refused, program, scratch, text};

/// What the program writes when it is given this on its standard input.
fn fed(arguments: &[&str], input: &[u8]) -> Vec<String> {
    let mut command = program(arguments);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("a child");
    assert!(output.status.success());
    let out = String::from_utf8(output.stdout).expect("output is UTF-8");
    out.lines().map(str::to_owned).collect()
}

#[test]
fn a_bad_line_is_one_error_and_the_others_are_answered() {
    let input = b"{\"text\": \"a\"}\n\xff\xfe\n{}\n\n{\"text\": \"b\"}";
    let lines = fed(&["tokenize", "--jsonl"], input);
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[0].contains("\"ids\"") && lines[3].contains("\"ids\""));
    assert_eq!(lines[1], "{\"error\":\"the line is not UTF-8\"}");
    assert!(lines[2].contains("missing field `text`"), "{lines:?}");

    let input = b"{\"messages\": []}\n\xff\n{\"messages\": {}}\n{\"messages\": null}\n";
    let lines = fed(&["template", "--jsonl"], input);
    assert!(lines[0].starts_with("{\"text\""), "{lines:?}");
    assert!(lines[1].contains("not UTF-8"), "{lines:?}");
    for (line, found) in lines[2..].iter().zip(["an object", "null"]) {
        let expected = format!("messages: expected a list of messages, found {found}");
        assert!(line.contains(&expected), "{line}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn devices_and_pipes_are_no_endless_files() {
    let limit = "more than 67108864 bytes";
    check_refused(&["template", "/dev/zero"], 1, &["/dev/zero", limit]);
    check_refused(
        &["arch", "check", "/dev/zero"],
        1,
        &["/dev/zero", "more than"],
    );
    let folder = scratch();
    let pipe = folder.path().join("pipe.arch.toml");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    for arguments in [
        &["run", "--json-schema", text(&pipe), "1"][..],
        &["arch", "check", text(&pipe)],
        &["template", text(&pipe)],
    ] {
        // Nobody writes into it: it is empty, and nothing waits.
        let ran = program(arguments).stdin(Stdio::null()).output();
        let ran = ran.expect("the program runs");
        assert_eq!(ran.status.code(), Some(1), "{arguments:?}");
    }
}
