//! What `--help` shows besides the options: the commands by what they are for, and examples.

use clap::Command;

/// The commands by what they are for. Each visible one is in one group.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Use a model",
        &["run", "batch", "chat", "serve", "launch", "doctor"],
    ),
    ("Models by name", &["pull", "list", "rm"]),
    (
        "Look inside a model",
        &[
            "inspect", "plan", "diagram", "points", "lab", "logits", "compare", "eval",
        ],
    ),
    ("Text and tokens", &["tokenize", "detokenize", "template"]),
    (
        "Files and definitions",
        &["convert", "quantise", "synth", "arch"],
    ),
    (
        "Speed, devices, shell",
        &["perf", "devices", "rpc-worker", "completions", "help"],
    ),
];

const FIRST_STEPS: &str = "\
First steps:
  bench run \"2+2=?\"                       the built-in model tiny-chat answers
  bench doctor PATH                       whether a GGUF file or Hugging Face folder runs here
  bench run -m PATH \"Hello\"
  bench run -m OWNER/REPO \"Hello\"        a model of the Hugging Face Hub, downloaded at its first use
  bench serve -m PATH                     an OpenAI-compatible server, and a chat page
  bench help COMMAND                      all options of a command

Documentation: README.md and the folder docs/ of the project.
Exit codes: 0, 1 (failed), 2 (wrong usage), 3 (run: cut before the answer fitted its constraint).
Files that are there already are replaced only with --force.";

/// A command is named by its first word, those of `lab` by two.
const EXAMPLES: &str = r#"bench run "2+2=?"
bench run -m FILE.gguf "What is 17 plus 5?"
bench run --quiet -f PROMPT.txt
bench run -m FOLDER --type q4_k -c 8k --temperature 0.7 --seed -1 "Tell me a story"
bench batch -m FILE.gguf IN.jsonl OUT.jsonl
bench batch -m FILE.gguf -np 16 IN.jsonl OUT.jsonl
bench chat -m FILE.gguf
bench chat -m FILE.gguf --system "You are brief." --temperature 0.7
bench serve -m FILE.gguf
bench serve -m FILE.gguf -c 32k -np 8 --kv-type q8_0
bench serve --models DIR --port 8080
bench pull OWNER/REPO
bench pull OWNER/REPO-GGUF:Q4_K_M
bench rm OWNER/REPO
bench launch codex
bench launch claude --url http://HOST:11116 --model NAME
bench launch aider --print
bench doctor FILE.gguf
bench doctor FOLDER --type q4_k -c 32k --parallel 4
bench inspect FILE.gguf
bench inspect FILE.gguf -c 32k --kv-type q8_0 --parallel 4
bench plan FILE.gguf
bench plan FILE.gguf --json
bench diagram FILE.gguf -o PAGES --html
bench diagram A.gguf B.gguf --compare
bench lab run FILE.gguf --prompt "Hi" --plan PLAN.toml -o OUT.safetensors
bench lab lens --prompt "The sea is" --svg lens.svg
bench lab patch --clean "2+2=" --corrupt "2+3=" --token 4 --svg patch.svg
bench logits -m FILE.gguf --tokens 1,2,3 -o OUT.npy
bench compare FILE.gguf --tokens 1,2,3 --path chunk=1
bench compare A.gguf B.gguf --tokens 1,2,3
bench tokenize -m FILE.gguf "The sea is blue."
bench convert FOLDER FILE.gguf --type q4_k
bench convert FILE.gguf DIR
bench convert FILE.gguf SMALL.gguf --type iq3_xs --calibrate TEXT.txt
bench quantise FILE.gguf SMALL.gguf --budget 4.2 --calibrate TEXT.txt
bench eval SMALL.gguf --text TEXT.txt --against FILE.gguf
bench synth llama -o RANDOM.gguf --set n_embd=64
bench perf -m FILE.gguf
bench perf -m FILE.gguf -p 512 -n 128 --profile
bench devices
bench devices -m FILE.gguf"#;

pub(super) fn with_help(command: Command) -> Command {
    let mut listed = String::new();
    for (title, names) in GROUPS {
        listed.push_str(&format!("{title}:\n"));
        for name in names {
            let about = match command.find_subcommand(name) {
                Some(known) => known.get_about().map(ToString::to_string),
                None => Some("Show the help of a command".to_owned()),
            };
            listed.push_str(&format!("  {name:12}{}\n", about.unwrap_or_default()));
        }
        listed.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}Options:\n{{options}}{{after-help}}"
    );
    let command = command.help_template(template).after_help(FIRST_STEPS);
    let examples: Vec<&str> = EXAMPLES.lines().collect();
    let examples = examples.chunk_by(|a, b| path(a) == path(b));
    examples.fold(command, |command, lines| {
        with_examples(command, &path(lines[0]), &lines.join("\n  "))
    })
}

/// The names of the command of an example.
fn path(line: &'static str) -> Vec<&'static str> {
    let n = if line.starts_with("bench lab ") { 2 } else { 1 };
    line.split(' ').skip(1).take(n).collect()
}

fn with_examples(command: Command, path: &[&'static str], lines: &str) -> Command {
    match path.split_first() {
        None => command.after_help(format!("Examples:\n  {lines}")),
        Some((first, rest)) => command.mut_subcommand(first, |own| with_examples(own, rest, lines)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use clap::Args;

    use super::*;
    use crate::cli::command_line::command;
    use crate::cli::{constraint, diffusion, log, options, other_programs, sampling};

    /// The words of a line, of which some are in quotation marks.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('"').enumerate();
        let words = parts.flat_map(|(at, part)| match at % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        words.collect()
    }

    #[test]
    fn every_example_is_a_command_line() {
        for line in EXAMPLES.lines() {
            let words = words(line).into_iter().map(Into::into).collect();
            let words = other_programs::translated(words).expect("no option of another program");
            let found = command().try_get_matches_from(words);
            assert!(found.is_ok(), "{line}: {}", found.expect_err("an error"));
        }
    }

    #[test]
    fn every_command_is_in_one_group() {
        let grouped = GROUPS.iter().flat_map(|(_, names)| *names).copied();
        let grouped: Vec<&str> = grouped.filter(|name| *name != "help").collect();
        let known: BTreeSet<&str> = grouped.iter().copied().collect();
        assert_eq!(grouped.len(), known.len());
        let command = command();
        let visible = command.get_subcommands().filter(|own| !own.is_hide_set());
        assert_eq!(
            visible.map(Command::get_name).collect::<BTreeSet<_>>(),
            known
        );
    }

    /// A heading lists the options that commands share. An option of a command's own stands before them, without one.
    #[test]
    fn the_options_of_a_command_stand_in_its_own_help() {
        let shared = [
            options::LoadOptions::augment_args(Command::new("shared")),
            sampling::SamplingOptions::augment_args(Command::new("shared")),
            diffusion::DiffusionOptions::augment_args(Command::new("shared")),
            constraint::ConstraintOptions::augment_args(Command::new("shared")),
            log::LogOptions::augment_args(Command::new("shared")),
        ];
        let shared = shared.iter().flat_map(Command::get_arguments);
        let headings = shared.map(|arg| (arg.get_id().clone(), arg.get_help_heading()));
        let headings: BTreeMap<_, _> = headings.collect();
        let mut commands = vec![command()];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            for arg in command
                .get_arguments()
                .filter(|arg| arg.get_help_heading().is_some())
            {
                let (id, own) = (arg.get_id(), arg.get_help_heading());
                let name = command.get_name();
                assert_eq!(
                    headings.get(id),
                    Some(&own),
                    "`{name}`: `{id}` is under {own:?}"
                );
            }
        }
    }
}
