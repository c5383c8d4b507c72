//! What files beside the code say of the program: metrics of the dashboard, options and routes of manifests, and tests that SECURITY.md names.

use std::collections::BTreeSet;
use std::path::PathBuf;

use regex_automata::meta::Regex;
use serde_json::{Value, json};

use crate::observability::samples;
use crate::support::command::printed;
use crate::support::server::Server;
use crate::support::sources::{check, root, sources};

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What a pattern finds in a text.
fn found(pattern: &str, text: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).expect("a pattern");
    let all = pattern.find_iter(text);
    all.map(|one| text[one.range()].to_owned()).collect()
}

/// Names of metrics in queries.
fn metrics(text: &str) -> BTreeSet<String> {
    found(
        r"\b(bench_[a-z0-9_]+|process_[a-z0-9_]+|vllm:[a-z0-9_]+)",
        text,
    )
}

/// The files of a folder of `deploy` with their texts.
fn files(folder: &str) -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root().join("deploy").join(folder))
        .expect("a folder")
        .map(|entry| entry.expect("a file").path())
        .collect();
    paths.sort();
    let name = |path: &PathBuf| {
        path.strip_prefix(root())
            .expect("below it")
            .display()
            .to_string()
    };
    paths
        .iter()
        .map(|path| (name(path), read(&name(path))))
        .collect()
}

/// Every metric that a dashboard or a manifest queries is one of a server that has answered a request.
#[test]
fn what_the_dashboard_and_the_manifests_query_is_there() {
    let server = Server::split(&["--draft", "2"]);
    server.post(
        "/v1/completions",
        &json!({ "prompt": "1", "max_tokens": 4 }),
    );
    let names: BTreeSet<String> = samples(&server)
        .into_iter()
        .map(|sample| sample.0)
        .collect();
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/bench.json")).expect("JSON");
    let mut queries = String::new();
    let panels = dashboard["panels"].as_array().expect("a list");
    for panel in panels {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries += target["expr"].as_str().expect("a query");
            queries.push('\n');
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("a list") {
        queries += variable["definition"].as_str().unwrap_or_default();
        queries.push('\n');
    }
    let mut faults = Vec::new();
    let asked = metrics(&queries);
    assert!(asked.len() > 25, "{asked:?}");
    for (file, text) in files("kubernetes")
        .into_iter()
        .chain([("dashboard".into(), queries)])
    {
        for name in metrics(&text) {
            if !names.contains(&name) {
                faults.push(format!("{file}: no metric `{name}`"));
            }
        }
    }
    check(&faults);
}

#[test]
fn options_and_routes_of_manifests_are_there() {
    let help = printed(&["serve", "--help"]);
    let options = found(r"--[a-z][a-z-]+", &help);
    let document: Value = serde_json::from_str(
        &Server::shared()
            .raw("GET", "/openapi.json", "text/plain", "")
            .2,
    )
    .expect("JSON");
    let mut faults = Vec::new();
    let (mut n_options, mut n_routes) = (0, 0);
    for (file, text) in files("kubernetes").into_iter().chain(files("haproxy")) {
        for line in text
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'))
        {
            if let Some(option) = line.trim().strip_prefix("- --") {
                let name = option.split(['=', ' ']).next().unwrap_or_default();
                n_options += 1;
                if !options.contains(&format!("--{name}")) {
                    faults.push(format!("{file}: no option `--{name}`"));
                }
            }
            for route in found(r"(path: |httpchk GET |/path: )/[a-z]+", line) {
                let path = route.rsplit(' ').next().expect("a path");
                n_routes += 1;
                if document["paths"].get(path).is_none() {
                    faults.push(format!("{file}: no route `{path}`"));
                }
            }
        }
    }
    assert!(n_options >= 8 && n_routes >= 4, "{n_options} {n_routes}");
    check(&faults);
}

/// Every test that SECURITY.md names is one: in its file, and under `#[test]`.
#[test]
fn tests_that_the_security_page_names_exist() {
    let page = read("SECURITY.md");
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("### Faults that other servers had"));
    let rows = rows.filter(|line| line.starts_with("| ")).skip(1);
    let files: Vec<(String, String)> = sources("src")
        .into_iter()
        .chain(sources("tests/it"))
        .collect();
    let is_test = |file: &str, name: &str| {
        let own = files.iter().find(|(path, _)| path == file);
        own.is_some_and(|(_, text)| {
            let start = format!("fn {name}(");
            let mut parts = text.split(&start);
            let before = parts.next().unwrap_or_default();
            let attributes = before.rsplit("\n\n").next().unwrap_or_default();
            parts.next().is_some() && attributes.contains("#[test]")
        })
    };
    let (mut faults, mut n) = (Vec::new(), 0);
    for row in rows {
        let cell = row
            .trim_end_matches(" |")
            .rsplit(" | ")
            .next()
            .expect("a cell");
        // A path within a package is that of the tests after it.
        let mut file = None;
        let mut n_here = 0;
        for part in cell.split('`').skip(1).step_by(2) {
            let (path, name) = match (part.split_once("::"), &file) {
                (Some((module, name)), _) => (format!("tests/it/{module}.rs"), name),
                (None, _) if part.ends_with(".rs") => {
                    file = Some(format!("src/{part}"));
                    continue;
                }
                (None, Some(path)) => (path.clone(), part),
                (None, None) => {
                    faults.push(format!("`{part}` is in no file"));
                    continue;
                }
            };
            n_here += 1;
            if !is_test(&path, name) {
                faults.push(format!("{path} has no test `{name}`"));
            }
        }
        if n_here == 0 {
            faults.push(format!("no test: {row}"));
        }
        n += n_here;
    }
    assert!(n >= 20, "{n}");
    check(&faults);
}
