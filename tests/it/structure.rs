//! The structure of the tree, as code: files that import each other, bindings and their users.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::sources::{check, root, sources, without_tests};

/// The folders of packages below `src`; the rest of `src` is the program.
const PACKAGES: [&str; 5] = ["base", "core", "inspect", "sampling", "server"];

/// The path of a module below `src`: of `mod.rs` and `lib.rs` the folder, of another file its name too.
fn path_of(file: &str) -> Vec<String> {
    let below = file.trim_start_matches("src/").trim_end_matches(".rs");
    let mut path: Vec<String> = below.split('/').map(str::to_owned).collect();
    let is_folder = |last: &String| ["mod", "lib"].contains(&last.as_str());
    if path.last().is_some_and(is_folder) {
        path.pop();
    }
    path
}

/// The path of the package that a module is of.
fn package_of(module: &[String]) -> &[String] {
    let is_package = |name: &String| PACKAGES.contains(&name.as_str());
    &module[..usize::from(module.first().is_some_and(is_package))]
}

/// The paths that a tree of imports names: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn flattened(tree: &str, before: &[String], out: &mut Vec<Vec<String>>) {
    let (head, inner) = tree.split_once('{').unwrap_or((tree, ""));
    let mut path = before.to_vec();
    let head = head.split(" as ").next().unwrap_or_default();
    let parts = head.split("::").map(str::trim).filter(|p| !p.is_empty());
    path.extend(parts.map(str::to_owned));
    let Some(inner) = inner.strip_suffix('}') else {
        return out.push(path);
    };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..at].trim().is_empty() {
                    flattened(inner[start..at].trim(), &path, out);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The paths that a file imports from its package, from the root on; with `is_public` those that it exports again.
fn imports(own: &[String], text: &str, is_public: bool) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for item in text.split(';') {
        // Comments and attributes may stand before it.
        let begins = |line: &str| {
            let line = line.trim_start();
            line.starts_with("use ") || line.starts_with("pub") && line.contains(" use ")
        };
        let Some(at) = item.lines().position(begins) else {
            continue;
        };
        let item = item.lines().skip(at).collect::<Vec<_>>().join(" ");
        let (before, tree) = item.split_once("use ").expect("it begins so");
        if is_public && before.is_empty() {
            continue;
        }
        flattened(tree.trim(), &[], &mut found);
    }
    found
        .into_iter()
        .filter_map(|path| {
            let n_up = path.iter().take_while(|part| *part == "super").count();
            match path[0].as_str() {
                "crate" => Some([package_of(own), &path[1..]].concat()),
                "self" => Some([own, &path[1..]].concat()),
                "super" => Some([&own[..own.len().checked_sub(n_up)?], &path[n_up..]].concat()),
                _ if is_public => Some([own, &path].concat()),
                _ => None,
            }
        })
        .collect()
}

/// Every module with its text, without what is for tests.
fn modules() -> BTreeMap<Vec<String>, String> {
    let files = sources("src").into_iter();
    let files = files.filter(|(name, _)| !name.contains("/tests"));
    files
        .map(|(name, text)| (path_of(&name), without_tests(&text)))
        .collect()
}

/// The module that holds what a path names: the longest part of it that is one, through what modules export again.
fn holder(
    mut path: Vec<String>,
    modules: &BTreeMap<Vec<String>, String>,
    exported: &BTreeMap<Vec<String>, Vec<String>>,
) -> Vec<String> {
    // Exports are not nested deeper.
    for _ in 0..8 {
        let mut lengths = (0..=path.len()).rev();
        let n = lengths.find(|n| modules.contains_key(&path[..*n]));
        let n = n.unwrap_or(0);
        match path.get(..=n).and_then(|name| exported.get(name)) {
            Some(there) => path = [there, &path[n + 1..]].concat(),
            None => return path[..n].to_vec(),
        }
    }
    path
}

#[test]
fn files_of_a_folder_import_each_other_in_one_direction() {
    let modules = modules();
    let mut exported = BTreeMap::new();
    for (own, text) in &modules {
        for path in imports(own, text, true) {
            let name = path.last().expect("a name").clone();
            exported.insert([own.clone(), vec![name]].concat(), path);
        }
    }
    // A name that a module exports from outside the package leads nowhere else.
    exported.retain(|name, path| name != path);
    let mut faults = Vec::new();
    let folders: BTreeSet<&[String]> = modules
        .keys()
        .filter_map(|own| own.split_last())
        .map(|(_, folder)| folder)
        .collect();
    for folder in folders {
        let child = |path: &[String]| path.strip_prefix(folder)?.first().cloned();
        let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (own, text) in &modules {
            let Some(from) = child(own) else { continue };
            for path in imports(own, text, false) {
                let to = child(&holder(path, &modules, &exported));
                known
                    .entry(from.clone())
                    .or_default()
                    .extend(to.filter(|to| *to != from));
            }
        }
        // Those go that import none of the rest: what stays is in a circle, or imports one that is.
        while let Some(leaf) = known
            .iter()
            .find(|(_, to)| to.iter().all(|to| !known.contains_key(to)))
            .map(|(name, _)| name.clone())
        {
            known.remove(&leaf);
        }
        if !known.is_empty() {
            let folder = folder.join("/");
            faults.push(format!("src/{folder}: a circle among {known:?}"));
        }
    }
    check(&faults);
}

#[test]
fn every_binding_has_a_user() {
    let path = root().join("ggml-sys/src/bindings.txt");
    let names = std::fs::read_to_string(path).expect("readable");
    let users = ["src", "tests", "benches", "ggml-sys"];
    let users = users.iter().flat_map(|folder| sources(folder));
    let users: String = users
        .filter(|(name, _)| !name.ends_with("bindings.rs"))
        .map(|(_, text)| text)
        .collect();
    let is_end = |c: char| !c.is_alphanumeric() && c != '_';
    let words: BTreeSet<&str> = users.split(is_end).collect();
    let faults: Vec<String> = names
        .lines()
        .filter(|name| !name.contains('*') && !words.contains(name))
        .map(|name| format!("ggml-sys/src/bindings.txt: nothing calls `{name}`"))
        .collect();
    check(&faults);
}
