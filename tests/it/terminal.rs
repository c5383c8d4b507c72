//! `bench chat` in a terminal of its own.

use std::process::Command;

use crate::chat::{said, saved, user, written};
use crate::support::command::{ended, program, scratch, text};
use crate::tools::{model, template};

/// Runs a program in a terminal: waits for a text, types another, and so on; prints what it showed.
const TERMINAL: &str = r#"
import json, os, pty, select, sys
steps, program = json.loads(sys.argv[1]), sys.argv[2:]
pid, fd = pty.fork()
if pid == 0:
    os.execv(program[0], program)
seen, at = b"", 0
def more(wait=b""):
    global seen
    if not select.select([fd], [], [], 60)[0]:
        sys.exit("waits for %r after %r" % (wait, seen))
    try:
        data = os.read(fd, 1 << 16)
    except OSError:
        data = b""
    seen += data
    return bool(data)
for wait, typed in steps:
    wait = wait.encode()
    while (found := seen.find(wait, at)) < 0:
        if not more(wait):
            sys.exit("ended before %r: %r" % (wait, seen))
    at = found + len(wait)
    os.write(fd, typed.encode())
while more():
    pass
sys.stdout.buffer.write(seen)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// What a terminal shows of a conversation; none where there is no Python to make one.
fn shown(arguments: &[&str], steps: &[(&str, &str)], settings: &[(&str, &str)]) -> Option<String> {
    let has_python = Command::new("python3").arg("--version").output();
    if !has_python.is_ok_and(|output| output.status.success()) || cfg!(not(unix)) {
        assert!(std::env::var_os("CI").is_none(), "CI needs python3");
        println!("NOT RUN: there is no python3 on this machine");
        return None;
    }
    let data = scratch();
    let mut command = Command::new("python3");
    let steps = serde_json::to_string(steps).expect("texts");
    let chat = program(&[&["chat"], arguments].concat());
    command
        .args(["-c", TERMINAL, &steps])
        .arg(chat.get_program())
        .args(chat.get_args())
        .env("TERM", "xterm-256color")
        .env("XDG_DATA_HOME", data.path())
        .env_remove("NO_COLOR");
    let ran = ended(command.envs(settings.iter().copied()));
    assert!(ran.is_fine(), "{}\n{}", ran.err, ran.out);
    Some(ran.out)
}

/// What Ctrl-C and Ctrl-D send.
const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";

#[test]
fn a_terminal_stops_answers_and_remembers_lines() {
    let folder = scratch();
    let file = folder.path().join("saved.json");
    let save = format!("/save {}\r", text(&file));
    let up = "\u{1b}[A";
    let Some(seen) = shown(
        &["--ctx", "60000"],
        &[
            ("Ctrl-D ends", ""),
            ("> ", "/set ignore_eos true\r"),
            ("\r\n", ""),
            ("> ", "Hello\r"),
            ("help", CTRL_C),
            ("[stopped]", ""),
            ("> ", &save),
            (" messages in ", ""),
            ("> ", "/set ignore_eos default\r"),
            ("\r\n", ""),
            ("> ", "abc"),
            ("abc", CTRL_C),
            ("[Ctrl-D ends]", ""),
            ("> ", "/reset\r"),
            ("\r\n", ""),
            // Past the two commands that follow it, to the message.
            ("> ", &format!("{up}{up}{up}{up}")),
            ("Hello", "\r"),
            ("help you?", ""),
            ("> ", CTRL_D),
        ],
        &[],
    ) else {
        return;
    };
    let messages = saved(&file);
    let said = messages[1]["content"].as_str().expect("content");
    assert_eq!(messages[0], user("Hello"));
    assert!(said.starts_with("Hello! How can I help"), "{seen}");
    assert!(said.len() < 200_000, "{} bytes", said.len());
    assert_eq!(seen.matches("[stopped]").count(), 1, "{seen}");
}

#[test]
fn lines_that_arrive_together_are_all_answered() {
    let all = "1+1=?\r2+2=?\r3+3=?\r";
    let answers = [("1+1=2\r\n", ""), ("2+2=4\r\n", ""), ("3+3=6\r\n", "")];
    let end = [("> ", CTRL_D)];
    for settings in [&[][..], &[("TERM", "dumb")]] {
        // At a prompt, before the first one, and after a line that Ctrl-C ends.
        let interrupted = format!("abc{CTRL_C}{all}");
        for first in [("> ", all), ("", all), ("> ", &interrupted)] {
            if first.1 == interrupted && !settings.is_empty() {
                continue;
            }
            let steps = [&[first][..], &answers, &end].concat();
            if shown(&[], &steps, settings).is_none() {
                return;
            }
        }
    }
    // A pipe is read in the same way.
    let all = all.replace('\r', "\n");
    assert_eq!(said(&[], &all), "1+1=2\n2+2=4\n3+3=6\n");
}

#[test]
fn input_typed_during_an_answer_is_kept_for_the_next_prompts() {
    let folder = scratch();
    let file = folder.path().join("saved.json");
    let pasted = "\u{1b}[200~1+1=?\r2+2=?\u{1b}[201~\r";
    let typed = format!(
        "/set ignore_eos default\r2+2=?\r/reset\r{pasted}/info\r/save {}\rhalf",
        text(&file)
    );
    for term in ["xterm-256color", "dumb"] {
        let save = format!("/save --force {}\r", text(&file));
        let is_dumb = term == "dumb";
        let typed = match is_dumb {
            true => "/set ignore_eos default\r2+2=?\r/info\r".to_owned(),
            false => typed.clone(),
        };
        let steps = [
            ("> ", "/set ignore_eos true\rHello\r"),
            ("How can", &*typed),
            ("help you?", CTRL_C),
            ("[stopped]", ""),
            // What the model answers after so much text depends on where it was stopped.
            (if is_dumb { "> " } else { "2+2=?\r\n" }, ""),
            ("last answer: ", ""),
            if is_dumb {
                ("> ", &save)
            } else {
                ("half", CTRL_C)
            },
            ("> ", CTRL_D),
        ];
        let Some(seen) = shown(&["--ctx", "60000"], &steps, &[("TERM", term)]) else {
            return;
        };
        let begin = seen.find("How can").expect("an answer");
        let end = seen.find("[stopped]").expect("it was stopped");
        let answer = &seen[begin..end];
        for text in ["/set", "2+2", "/info", "/reset", "half"] {
            assert!(!answer.contains(text), "{answer}");
        }
        if !is_dumb {
            let messages = saved(&file);
            assert_eq!(messages[0], user("1+1=?\n2+2=?"));
            assert_eq!(messages.as_array().map(Vec::len), Some(2));
        }
    }
}

#[test]
fn a_stopped_answer_has_a_speed() {
    let steps = [
        ("> ", "/set ignore_eos true\rHello\r"),
        ("help you?", CTRL_C),
        ("[stopped]", "/info\r"),
        ("last answer: stopped after ", ""),
        (" completion tokens at ", ""),
        ("> ", CTRL_D),
    ];
    shown(&["--ctx", "60000"], &steps, &[]);
}

#[cfg(unix)]
#[test]
fn the_history_is_kept_for_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let data = scratch();
    let file = data.path().join("bench/chat-history");
    let settings = [("XDG_DATA_HOME", text(data.path()))];
    let up = "\u{1b}[A";
    let steps = |lines: &'static str| [("> ", lines), ("2+2=4\r\n", ""), ("> ", CTRL_D)];
    if shown(&["--no-history"], &steps("2+2=?\r"), &settings).is_none() {
        return;
    }
    assert!(!file.exists());
    // A line that starts with a space is not kept.
    shown(&[], &steps(" 3+3=?\r2+2=?\r"), &settings);
    let kept = std::fs::read_to_string(&file).expect("a history");
    assert!(kept.contains("2+2=?") && !kept.contains("3+3"), "{kept}");
    let mode = std::fs::metadata(&file)
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = [
        ("> ", up),
        ("2+2=?", "\r"),
        ("2+2=4\r\n", ""),
        ("> ", CTRL_D),
    ];
    shown(&[], &again, &settings);
    // What cannot be kept is no failure.
    std::fs::remove_dir_all(data.path().join("bench")).expect("a folder");
    std::fs::write(data.path().join("bench"), "").expect("a writable folder");
    let seen = shown(&[], &steps("2+2=?\r"), &settings).expect("it ran before");
    assert!(seen.contains("the history is not kept"), "{seen}");
}

#[test]
fn the_tab_key_completes_and_help_is_wrapped() {
    let folder = scratch();
    let file = written(
        folder.path(),
        "a talk.json",
        "[{\"role\": \"user\", \"content\": \"Hi\"}]",
    );
    let start = text(&file).strip_suffix("lk.json").expect("its name");
    let load = format!("/loa\t{start}\t\r");
    let steps = [
        ("> ", &*load),
        ("[1 messages]", ""),
        ("> ", "/he\t\r"),
        (
            "VALUE `default`: as at the start; without VALUE show it,\r\n",
            "",
        ),
        ("                       without NAME all\r\n", ""),
        ("> ", "/set tempera\t0.5\r/set temperature\r"),
        ("temperature = 0.5\r\n", ""),
        ("> ", CTRL_D),
    ];
    shown(&[], &steps, &[]);
}

#[test]
fn colours_show_probabilities_and_reasoning_is_dim() {
    let steps = [
        ("> ", "/logprobs\r"),
        ("[log-probabilities on]", ""),
        ("> ", "Hello\r"),
        ("?", ""),
        ("> ", CTRL_D),
    ];
    let Some(seen) = shown(&[], &steps, &[]) else {
        return;
    };
    assert!(
        seen.contains("\u{1b}[38;5;34mHello\u{1b}[0m\u{1b}[38;5;34m!\u{1b}[0m"),
        "{seen}"
    );
    assert!(
        seen.contains("\u{1b}[2m[log-probabilities on]\u{1b}[0m"),
        "{seen}"
    );
    // No colours: a list.
    let seen = shown(&[], &steps, &[("NO_COLOR", "1")]).expect("it ran before");
    assert!(
        !seen.contains("\u{1b}[38;5") && !seen.contains("\u{1b}[2m"),
        "{seen}"
    );
    assert!(
        seen.contains("Hello! How can I help you?\r\n") && seen.contains(" \"Hello\"\r\n"),
        "{seen}"
    );

    let folder = scratch();
    let path = model(folder.path(), "thinking.gguf", &template("", "<think>\n"));
    let steps = [
        ("> ", "/set thinking_budget 3\r"),
        ("\r\n", ""),
        ("> ", "/set max_tokens 30\r"),
        ("\r\n", ""),
        ("> ", "2+2=?\r"),
        ("2+2=?", ""),
        ("\u{1b}[2m", ""),
        ("\u{1b}[0m\r\n", ""),
        ("> ", CTRL_D),
    ];
    shown(&["-m", text(&path)], &steps, &[]);
}

#[test]
fn text_diffusion_is_shown_while_it_forms() {
    let steps = [("> ", "Hi\r"), ("░", ""), ("help you?", ""), ("> ", CTRL_D)];
    shown(&["-m", "tiny-diffusion", "-n", "16"], &steps, &[]);
}
