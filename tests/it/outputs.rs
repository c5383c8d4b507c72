//! What commands write: complete or not at all, never in place of an input, nothing left behind.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::command::{bench, bench_in, made_up, printed, program, scratch, text};
use crate::support::sources;

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
fn a_signal_leaves_existing_files_and_nothing_else() {
    let folder = scratch();
    let target = folder.path().join("m.gguf");
    fs::write(&target, "before").expect("a writable folder");
    let forced = [&LARGE[..], &[text(&target), "--force"]].concat();
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let mut command = program(&forced);
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
fn leftovers_of_a_killed_command_are_removed_by_the_next_one() {
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
    let hard = folder.path().join("hard.gguf");
    fs::hard_link(&model, &hard).expect("a free name");
    let [file, link, hard] = [&model, &link, &hard].map(|path| text(path));
    let logits = ["logits", "--tokens", "1,2", "--force", "-m"];
    let log = ["plan", "-m", file, "--log", hard];
    let commands: [&[&str]; 8] = [
        &[&logits[..], &[file, "-o", file]].concat(),
        &[&logits[..], &[link, "-o", file]].concat(),
        &[&logits[..], &[hard, "-o", link]].concat(),
        &["convert", "--force", file, file],
        &["convert", "--force", hard, link],
        &["synth", "llama", "--force", "--vocab", file, "-o", file],
        &["synth", "llama", "--force", "--vocab", hard, "-o", link],
        &log,
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
    // A file of a folder is an input too, and so is what only its text was read of.
    let at = |name: &str| folder.path().join(name);
    let (model, as_folder) = (text(&model), at("folder"));
    assert!(bench(&["convert", model, text(&as_folder)]).is_fine());
    let config = as_folder.join("config.json");
    let before = fs::read(&config).expect("a file");
    let folder = text(&as_folder);
    for command in [
        &["convert", "--force", folder, folder][..],
        &[&logits[..], &[folder, "-o", text(&config)]].concat(),
    ] {
        let ran = bench(command);
        assert_eq!(ran.code, 1, "{command:?}: {}", ran.err);
        assert!(ran.err.contains("config.json: is an input"), "{}", ran.err);
        assert_eq!(fs::read(&config).expect("a file"), before);
    }
    let ran = bench(&[&logits[..], &[model, "-o", "/dev/full"]].concat());
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
fn a_full_disk_leaves_existing_files() {
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
        &[&["logits", "-m", model, "--force", "-o", "a.npy"][..], &run].concat(),
        &["convert", "--force", "--type", "q8_0", model, "a.gguf"],
        &["convert", model, "new"],
        &["diagram", "llama", "--force", "-o", "."],
        &["diagram", "llama", "--html", "--force", "-o", "."],
        &[
            &[
                "lab",
                "run",
                model,
                "--plan",
                text(&plan),
                "--force",
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

/// Every output of every command (the list is checked in `src/cli/output.rs`): a file that is there is kept, and
/// replaced with `--force`.
#[test]
fn existing_files_are_replaced_only_with_force() {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name);
    let model = made_up(folder.path(), "llama", &[]);
    let model = text(&model);
    fs::write(
        at("plan.json"),
        r#"{"captures": [{"point": "layers.0.out"}]}"#,
    )
    .expect("written");
    fs::write(at("prompts.jsonl"), "[1, 2]\n").expect("written");
    for name in ["one.txt", "two.txt"] {
        fs::write(at(name), format!("{name}\n")).expect("written");
    }
    let (one, two) = (at("one.txt"), at("two.txt"));
    let lens = ["lab", "lens", "tiny-chat", "--text", "Hi"];
    let attention = ["lab", "attention", "tiny-chat", "--text", "Hi"];
    let seen = sources::root().join("tests/media/llava-small");
    let picture = seen.join("a.png");
    let map = [
        "lab",
        "attention-map",
        text(&seen),
        "--image",
        text(&picture),
        "--text",
        "Hi",
    ];
    let attribution = [
        "lab",
        "attribution",
        "tiny-chat",
        "--text",
        "Hi",
        "--of",
        "4",
    ];
    let patch = [
        "lab",
        "patch",
        "tiny-chat",
        "--clean",
        "2+2=",
        "--corrupt",
        "2+3=",
    ];
    let patch = [&patch[..], &["--token", "4"]].concat();
    let experts = made_up(
        folder.path(),
        "olmoe",
        &["--vocab", "models/tiny-chat.gguf"],
    );
    let routing = ["lab", "routing", text(&experts), "--text", "Hi"];
    let direction = ["lab", "direction", "tiny-chat", "--positive", text(&one)];
    let direction = [&direction[..], &["--negative", text(&two)]].concat();
    let run = ["lab", "run", model, "--tokens", "1,2", "--plan"];
    let plan = at("plan.json");
    let read = at("read.txt");
    fs::write(&read, "What is 17 plus 5?\n".repeat(40)).expect("a writable folder");
    let calibrated = [
        "convert",
        "tiny-chat",
        "ci.gguf",
        "--type",
        "q8_0",
        "--calibrate",
        text(&read),
    ];
    let searched = [
        "quantise",
        "tiny-chat",
        "--budget",
        "6",
        "--calibrate",
        text(&read),
    ];
    let searched = [
        &searched[..],
        &["--windows", "1", "--rounds", "0", "--ctx", "64"],
    ]
    .concat();
    // The arguments before the output, the output as an argument, and the file that it makes.
    let svg = |arguments: &[&str], n: usize| -> Vec<(Vec<String>, String, String)> {
        let own = |arguments: &[&str]| arguments.iter().map(|a| (*a).to_owned()).collect();
        let option = |option: &str, ending: &str| {
            let file = format!("{n}.{ending}");
            (own(&[arguments, &[option]].concat()), file.clone(), file)
        };
        vec![
            option("--svg", "svg"),
            option("--html", "html"),
            option("--json", "json"),
        ]
    };
    let mut cases: Vec<(Vec<String>, String, String)> = Vec::new();
    for (n, arguments) in [&lens[..], &attention, &map, &attribution, &patch, &routing]
        .into_iter()
        .enumerate()
    {
        cases.extend(svg(arguments, n));
    }
    for (arguments, output, made) in [
        (&["synth", "llama", "-o"][..], "s.gguf", "s.gguf"),
        (
            &["logits", "-m", model, "--tokens", "1,2", "-o"],
            "l.npy",
            "l.npy",
        ),
        (&["convert", model], "c.gguf", "c.gguf"),
        (
            &[&calibrated[..], &["--save-imatrix"]].concat(),
            "i.gguf",
            "i.gguf",
        ),
        (&searched, "q.gguf", "q.gguf"),
        (&["convert", model], "c", "c/config.json"),
        (&["diagram", "bert", "-o"], "d", "d/bert.arch.svg"),
        (&["diagram", "bert", "--html", "-o"], "d", "d/bert.html"),
        (
            &["diagram", "bert", "gpt2", "--compare", "-o"],
            "d",
            "d/bert-vs-gpt2.svg",
        ),
        (
            &["arch", "new", "mine", "--from", model, "-o"],
            ".",
            "mine.arch.toml",
        ),
        (&[&run[..], &[text(&plan), "-o"]].concat(), "r.npz", "r.npz"),
        (
            &[&run[..], &[text(&plan), "-o"]].concat(),
            "r.safetensors",
            "r.safetensors",
        ),
        (&[&direction[..], &["-o"]].concat(), "v.gguf", "v.gguf"),
        (
            &[&direction[..], &["-o"]].concat(),
            "v.safetensors",
            "v.safetensors",
        ),
    ] {
        let arguments = arguments.iter().map(|a| (*a).to_owned()).collect();
        cases.push((arguments, output.to_owned(), made.to_owned()));
    }
    for (arguments, output, made) in cases {
        let command = [arguments, vec![output]].concat();
        let run = |more: &[&str]| {
            let more = more.iter().map(|a| (*a).to_owned());
            bench_in(
                folder.path(),
                &command.iter().cloned().chain(more).collect::<Vec<_>>(),
            )
        };
        let made = at(&made);
        let ran = run(&[]);
        assert!(ran.is_fine(), "{command:?}: {}", ran.err);
        let whole = fs::read(&made).expect("it was made");
        fs::write(&made, "before").expect("a writable file");
        let ran = run(&[]);
        assert_eq!(ran.code, 1, "{command:?}");
        assert!(
            ran.err.contains("is there already; --force replaces"),
            "{command:?}: {}",
            ran.err
        );
        assert_eq!(fs::read(&made).expect("a file"), b"before", "{command:?}");
        let ran = run(&["--force"]);
        assert!(ran.is_fine(), "{command:?}: {}", ran.err);
        let again = fs::read(&made).expect("a file");
        // Answers of the lab have a time.
        let is_same = again == whole || made.extension().is_some_and(|ending| ending != "gguf");
        assert!(is_same && again.len() > 6, "{command:?}");
    }

    // A collection is resumed; another one in its place is refused.
    let plan = text(&plan);
    let collect = |model: &str, more: &[&str]| {
        let first = [
            "lab",
            "collect",
            model,
            "--prompts",
            "prompts.jsonl",
            "--plan",
            plan,
            "-o",
            "k",
        ];
        bench_in(folder.path(), &[&first[..], more].concat())
    };
    fs::create_dir(at("k")).expect("a writable folder");
    fs::write(at("k/lock"), "mine").expect("a writable folder");
    assert!(collect(model, &[]).is_fine());
    assert_eq!(fs::read(at("k/lock")).expect("a file"), b"mine");
    let before = fs::read(at("k/index.json")).expect("a file");
    let ran = collect("tiny-chat", &[]);
    assert!(ran.code == 1 && ran.err.contains("--force"), "{}", ran.err);
    assert_eq!(fs::read(at("k/index.json")).expect("a file"), before);
    assert!(collect(model, &[]).is_fine());
    let ran = collect("tiny-chat", &["--force"]);
    assert!(ran.is_fine(), "{}", ran.err);
    assert_ne!(fs::read(at("k/index.json")).expect("a file"), before);
    assert_eq!(fs::read(at("k/lock")).expect("a file"), b"mine");
    fs::create_dir(at("other")).expect("a writable folder");
    fs::write(at("other/notes"), "mine").expect("a writable folder");
    let other = [
        "lab",
        "collect",
        model,
        "--prompts",
        "prompts.jsonl",
        "--plan",
        plan,
        "-o",
        "other",
    ];
    let ran = bench_in(folder.path(), &other);
    assert!(
        ran.code == 1 && ran.err.contains("is not empty"),
        "{}",
        ran.err
    );
    let ran = bench_in(folder.path(), &[&other[..], &["--force"]].concat());
    assert!(ran.is_fine(), "{}", ran.err);
    assert_eq!(fs::read(at("other/notes")).expect("a file"), b"mine");
}

#[cfg(unix)]
#[test]
fn an_output_can_be_stdout() {
    let folder = scratch();
    let model = made_up(folder.path(), "llama", &[]);
    let [array, file] = ["a.npy", "out"].map(|name| folder.path().join(name));
    let logits = ["logits", "-m", text(&model), "--tokens", "1,2", "-o"];
    assert!(bench(&[&logits[..], &[text(&array)]].concat()).is_fine());
    let array = fs::read(array).expect("a file");
    for name in ["-", "/dev/stdout"] {
        let mut command = program(&[&logits[..], &[name]].concat());
        assert_eq!(command.output().expect("it runs").stdout, array);
        // What the stream leads to is no file of that name: it stays the shell's.
        let out = File::create(&file).expect("a writable folder");
        let status = command.stdout(out).status();
        assert!(status.expect("it runs").success());
        assert_eq!(fs::read(&file).expect("a file"), array);
    }
    // Nothing is mixed into it.
    let lens = [
        "lab",
        "lens",
        "tiny-chat",
        "--text",
        "Hi",
        "--json",
        "-",
        "--svg",
    ];
    let said = printed(&[&lens[..], &[text(&folder.path().join("l.svg"))]].concat());
    assert!(
        serde_json::from_str::<serde_json::Value>(&said).is_ok(),
        "{said}"
    );
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let folder = scratch();
    let missing = folder.path().join("missing");
    let output = missing.join("values.npy");
    let ran = bench(&["logits", "--tokens", "1,2", "-o", text(&output)]);
    let named = format!("there is no folder {}", text(&missing));
    assert!(ran.err.contains(&named), "{}", ran.err);

    // A server has a folder for sockets and one for results.
    for options in [
        &["serve", "--port", "0"][..],
        &["serve", "--port", "0", "--in-process"],
    ] {
        let mut command = program(options);
        let output = command.env("TMPDIR", &missing).output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        for part in [text(&missing), "TMPDIR"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
