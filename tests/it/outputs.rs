//! What commands write: complete or not at all, never in place of an input, nothing left behind.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::{bench, made_up, program, scratch, text};

/// A model that takes far longer to write than a test waits.
const LARGE: [&str; 7] = [
    "synth",
    "llama",
    "--set",
    "n_embd=4096",
    "--set",
    "block_count=64",
    "-o",
];

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = names
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_what_was_there_and_nothing_else() {
    let folder = scratch();
    let target = folder.path().join("m.gguf");
    fs::write(&target, "before").expect("a writable folder");
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let mut command = program(&[&LARGE[..], &[text(&target)]].concat());
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program runs");
        let begun = Instant::now();
        while names(folder.path()).len() < 2 {
            let ended = child.try_wait().expect("a child");
            assert!(
                ended.is_none() && begun.elapsed() < Duration::from_secs(60),
                "{ended:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status();
        assert!(status.expect("kill runs").success());
        let ended = child.wait().expect("a child");
        assert_eq!(ended.code(), Some(code), "{signal}");
        assert_eq!(names(folder.path()), ["m.gguf"], "{signal}");
        assert_eq!(fs::read(&target).expect("a file"), b"before");
    }
}

#[cfg(unix)]
#[test]
fn what_a_killed_command_left_is_removed_by_the_next_one() {
    let folder = scratch();
    let target = folder.path().join("llama.gguf");
    let mut command = program(&[&LARGE[..], &[text(&target)]].concat());
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the program runs");
    while names(folder.path()).is_empty() {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("it lives");
    child.wait().expect("a child");
    assert_eq!(names(folder.path()).len(), 1);
    made_up(folder.path(), "llama", &[]);
    assert_eq!(names(folder.path()), ["llama.gguf"]);
}

#[test]
fn an_input_is_not_replaced() {
    let folder = scratch();
    let model = made_up(folder.path(), "llama", &[]);
    let before = fs::read(&model).expect("a file");
    let link = folder.path().join("link.gguf");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&model, &link).expect("a free name");
    let commands: [&[&str]; 3] = [
        &[
            "logits",
            "--tokens",
            "1,2",
            "-m",
            text(&model),
            "-o",
            text(&model),
        ],
        &[
            "logits",
            "--tokens",
            "1,2",
            "-m",
            text(&link),
            "-o",
            text(&model),
        ],
        &["convert", "--force", text(&model), text(&model)],
    ];
    for command in commands {
        let ran = bench(command);
        assert_eq!(ran.code, 1, "{command:?}: {}", ran.err);
        assert!(
            ran.err.contains("is an input of this command"),
            "{}",
            ran.err
        );
        assert_eq!(fs::read(&model).expect("a file"), before);
    }
    let ran = bench(&[
        "logits",
        "--tokens",
        "1,2",
        "-m",
        text(&model),
        "-o",
        "/dev/full",
    ]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("/dev/full: No space left"), "{}", ran.err);
}

#[cfg(target_os = "linux")]
#[test]
fn an_error_that_cannot_be_written_is_an_exit_code() {
    let full = File::options().write(true).open("/dev/full");
    let mut command = program(&["plan", "-m", "no-such-file.gguf"]);
    let command = command.stderr(full.expect("a device"));
    let status = command.status().expect("the program runs");
    assert_eq!(status.code(), Some(1));
}

/// A disk that is full, as a limit of a kilobyte for each file: what was there stays, and nothing is left.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_what_was_there() {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name);
    let model = made_up(folder.path(), "llama", &[]);
    fs::write(
        at("plan.json"),
        r#"{"captures": [{"point": "layers.*.out"}]}"#,
    )
    .expect("written");
    let (model, plan) = (text(&model), at("plan.json"));
    for name in [
        "a.npy",
        "a.gguf",
        "a.safetensors",
        "llama.arch.svg",
        "llama.html",
    ] {
        fs::write(at(name), "before").expect("a writable folder");
    }
    fs::create_dir(at("out")).expect("a writable folder");
    fs::write(at("out/file"), "before").expect("a writable folder");
    let before = names(folder.path());
    let run = ["--threads", "1", "--tokens", "1,2,3,4,5,6"];
    let commands: [&[&str]; 6] = [
        &[&["logits", "-m", model, "-o", "a.npy"][..], &run].concat(),
        &["convert", "--force", "--type", "q8_0", model, "a.gguf"],
        &["convert", model, "new"],
        &["diagram", "llama", "-o", "."],
        &["diagram", "llama", "--html", "-o", "."],
        &[
            &[
                "lab",
                "run",
                model,
                "--plan",
                text(&plan),
                "-o",
                "a.safetensors",
            ][..],
            &run,
        ]
        .concat(),
    ];
    for command in commands {
        let mut limited = Command::new("sh");
        let limit = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
        limited.args(["-c", limit, "sh", env!("CARGO_BIN_EXE_bench")]);
        let ran = limited.args(command).current_dir(folder.path()).output();
        let ran = ran.expect("sh runs");
        let message = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{command:?}: {message}");
        assert!(message.contains("File too large"), "{command:?}: {message}");
        assert_eq!(names(folder.path()), before, "{command:?}");
    }
    for name in [
        "a.npy",
        "a.gguf",
        "a.safetensors",
        "llama.arch.svg",
        "llama.html",
        "out/file",
    ] {
        assert_eq!(fs::read(at(name)).expect("a file"), b"before", "{name}");
    }
}

/// A file that is cut short while a command waits for its input is read no further.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_cut_short_ends_a_command_with_an_error() {
    let folder = scratch();
    let model = made_up(
        folder.path(),
        "llama",
        &["--set", "n_embd=512", "--set", "vocab_size=8192"],
    );
    let target = folder.path().join("other.gguf");
    let mut command = program(&["convert", "--type", "q8_0", text(&model), text(&target)]);
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().expect("the program runs");
    let begun = Instant::now();
    // It has read the header when it writes.
    while names(folder.path()).len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    let file = File::options().write(true).open(&model).expect("it opens");
    file.set_len(4096).expect("cut short");
    let ended = child.wait_with_output().expect("a child");
    let message = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{message}");
    assert!(
        message.starts_with("error: ") && message.contains("cut short"),
        "{message}"
    );
}
