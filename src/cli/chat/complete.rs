//! Completion of commands at the Tab key: their names, names of settings, and names of files.

use std::path::Path;

use rustyline::Context;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;

use lab_sampling::{LISTS, PARAMETERS};

use super::commands::{FORCE, commands};

/// The helper that `rustyline` asks for completions.
pub(super) struct CommandCompleter;

impl rustyline::Helper for CommandCompleter {}
impl Highlighter for CommandCompleter {}
impl Validator for CommandCompleter {}
impl Hinter for CommandCompleter {
    type Hint = String;
}

impl Completer for CommandCompleter {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        Ok(completed(&line[..at]))
    }
}

/// The completions of the text before the cursor, and the position at which they start.
fn completed(before: &str) -> (usize, Vec<Pair>) {
    let Some(command) = before
        .strip_prefix('/')
        .filter(|_| !before.starts_with("//"))
    else {
        // In a message a tab is a tab.
        return (before.len(), vec![pair("\t".into(), "\t".into())]);
    };
    let Some((name, rest)) = command.split_once(' ') else {
        let all = commands().filter(|[name, ..]| name.starts_with(command));
        let all = all.map(|[name, argument, _]| {
            let end = if argument.is_empty() { "" } else { " " };
            pair(format!("/{name}"), format!("/{name}{end}"))
        });
        return (0, all.collect());
    };
    let argument = commands().find(|[own, ..]| *own == name);
    let argument = argument.map_or("", |[_, argument, _]| argument);
    let begin = before.len() - rest.len();
    if argument.contains("NAME") {
        let names = PARAMETERS.iter().map(|parameter| parameter.name);
        let names = names.chain(LISTS.iter().map(|list| list.name));
        let fitting = names.filter(|name| name.starts_with(rest));
        let all = fitting.map(|name| pair(name.to_owned(), format!("{name} ")));
        return (begin, all.collect());
    }
    if !argument.contains("FILE") {
        return (before.len(), Vec::new());
    }
    let path = rest.strip_prefix(FORCE).map_or(rest, str::trim_start);
    files(path, before.len())
}

/// The files and folders whose names start as the path ends. `end` is the end of the path in the line.
fn files(path: &str, end: usize) -> (usize, Vec<Pair>) {
    let (folder, start) = path.split_at(path.rfind('/').map_or(0, |at| at + 1));
    let read = std::fs::read_dir(if folder.is_empty() {
        Path::new(".")
    } else {
        Path::new(folder)
    });
    let mut all: Vec<Pair> = Vec::new();
    for entry in read.into_iter().flatten().flatten() {
        let Ok(mut name) = entry.file_name().into_string() else {
            continue;
        };
        let is_hidden = name.starts_with('.') && !start.starts_with('.');
        if is_hidden || !name.starts_with(start) || name.contains(char::is_control) {
            continue;
        }
        if entry.path().is_dir() {
            name.push('/');
        }
        all.push(pair(name.clone(), name));
    }
    all.sort_by(|a, b| a.display.cmp(&b.display));
    (end - start.len(), all)
}

fn pair(display: String, replacement: String) -> Pair {
    Pair {
        display,
        replacement,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replacements(before: &str) -> (usize, Vec<String>) {
        let (at, pairs) = completed(before);
        let all = pairs.into_iter().map(|pair| pair.replacement);
        (at, all.collect())
    }

    #[test]
    fn commands_settings_and_files_are_completed() {
        assert_eq!(replacements("/und"), (0, vec!["/undo".into()]));
        assert_eq!(
            replacements("/re"),
            (0, vec!["/reset".into(), "/retry".into()])
        );
        assert_eq!(replacements("/sys"), (0, vec!["/system ".into()]));
        assert_eq!(replacements("/set temp"), (5, vec!["temperature ".into()]));
        assert_eq!(replacements("/undo x"), (7, Vec::new()));
        assert_eq!(replacements("a\tb"), (3, vec!["\t".into()]));
        assert_eq!(replacements("//und"), (5, vec!["\t".into()]));
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["a talk.json", "a tale.json", ".hidden", "b"] {
            std::fs::write(folder.path().join(name), "").expect("a writable folder");
        }
        std::fs::create_dir(folder.path().join("c")).expect("a writable folder");
        let path = folder.path().display();
        let before = format!("/load {path}/a tal");
        let expected = vec!["a tale.json".to_owned(), "a talk.json".to_owned()];
        assert_eq!(replacements(&before), (before.len() - 5, expected));
        let before = format!("/save --force {path}/c");
        assert_eq!(replacements(&before), (before.len() - 1, vec!["c/".into()]));
        assert_eq!(replacements(&format!("/schema {path}/")).1.len(), 4);
        assert_eq!(replacements("/load /no/such/folder/x").1.len(), 0);
    }
}
