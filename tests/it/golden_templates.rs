//! Chat templates against the texts that Jinja2 gave for them.
//!
//! The data lives outside the repository, in the folder that `BENCH_SHARED` names (or `shared`
//! next to the repository); its README describes the format. Without it there is nothing to test,
//! which the test says.

use std::fs;
use std::path::{Path, PathBuf};

use lab_base::chat::template::{ChatTemplate, RenderError, RenderInput};
use serde_json::{Map, Value};

use crate::support::shared;

#[derive(Default, Debug)]
struct Counts {
    templates: usize,
    rendered: usize,
    printed_by_python: usize,
    raised: usize,
    failed: usize,
    failed_here_too: usize,
}

/// Templates with cases. There may be more, and never fewer.
const TEMPLATES: usize = 35;
/// Cases that give a text.
const RENDERED: usize = 1217;

#[test]
fn templates_render_as_jinja2_renders_them() {
    let Some(folder) = shared("golden/templates/dev") else {
        return;
    };
    let conversations = read_json(&folder.join("conversations.json"));
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    for path in files_named(&folder, "json") {
        if path.ends_with("conversations.json") {
            continue;
        }
        counts.templates += 1;
        check_file(&path, &conversations, &mut counts, &mut failures);
    }
    #[expect(
        clippy::print_stdout,
        reason = "the counts are the result of this test"
    )]
    {
        println!("golden templates: {counts:?}, {} wrong", failures.len());
    }
    assert!(
        counts.templates >= TEMPLATES,
        "{} of {TEMPLATES}",
        counts.templates
    );
    assert!(
        counts.rendered >= RENDERED,
        "{} of {RENDERED} cases",
        counts.rendered
    );
    assert!(
        failures.is_empty(),
        "{} cases differ; the first:\n{}",
        failures.len(),
        failures[..failures.len().min(5)].join("\n\n")
    );
}

fn check_file(path: &Path, conversations: &Value, counts: &mut Counts, failures: &mut Vec<String>) {
    let file = read_json(path);
    let source = fs::read_to_string(path.with_extension("jinja")).expect("the template is there");
    let template = ChatTemplate::new(&source).expect("the template compiles");
    let cases = file["cases"].as_array().expect("a list of cases");
    for (index, case) in cases.iter().enumerate() {
        let result = render(&template, &file, case, conversations);
        let problem = match (case["expected"].as_str(), case["error"].as_str()) {
            (Some(expected), _) => {
                counts.rendered += 1;
                counts.printed_by_python += usize::from(case["python_repr"] == true);
                (result.as_deref() != Ok(expected)).then(|| difference(expected, &result))
            }
            (None, Some(error)) if case["raised_by_template"] == true => {
                counts.raised += 1;
                (result != Err(RenderError::Raised(error.to_owned())))
                    .then(|| format!("should refuse with {error:?}, gave {result:?}"))
            }
            _ => {
                counts.failed += 1;
                counts.failed_here_too += usize::from(result.is_err());
                None
            }
        };
        if let Some(problem) = problem {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            failures.push(format!(
                "{name} case {index} ({}): {problem}",
                case["conversation"]
            ));
        }
    }
}

fn render(
    template: &ChatTemplate,
    file: &Value,
    case: &Value,
    conversations: &Value,
) -> Result<String, RenderError> {
    let conversation = case["conversation"].as_str().expect("a conversation");
    let conversation = &conversations[conversation];
    let no_kwargs = Map::new();
    template.render(&RenderInput {
        messages: &conversation["messages"],
        tools: Some(case.get("tools").unwrap_or(&conversation["tools"])),
        documents: None,
        add_generation_prompt: case["add_generation_prompt"] == true,
        continue_final_message: case["continue_final_message"] == true,
        kwargs: case["kwargs"].as_object().unwrap_or(&no_kwargs),
        bos_token: file["bos_token"].as_str().expect("a token"),
        eos_token: file["eos_token"].as_str().expect("a token"),
        now: file["now"]
            .as_str()
            .and_then(|now| now.parse().ok())
            .expect("a moment"),
    })
}

/// Where the two texts part, with some text around.
fn difference(expected: &str, result: &Result<String, RenderError>) -> String {
    let got = match result {
        Ok(got) => got,
        Err(error) => return format!("should render, failed with: {error}"),
    };
    let common = expected
        .chars()
        .zip(got.chars())
        .take_while(|(a, b)| a == b)
        .count();
    let excerpt = |text: &str| -> String {
        text.chars()
            .skip(common.saturating_sub(60))
            .take(140)
            .collect()
    };
    format!(
        "differs at character {common}\n  expected {:?}\n  got      {:?}",
        excerpt(expected),
        excerpt(got)
    )
}

fn files_named(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files
}

fn read_json(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("a file");
    serde_json::from_str(&text).expect("JSON")
}
