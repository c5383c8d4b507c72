//! What packages are made of: the licences of crates, manual pages, the configuration and the unit of the service. The packages themselves:
//! `make check-packages`.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::support::command::{printed, scratch, text};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A file of the project.
fn file(path: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{path}")).expect("the file is there")
}

/// What `packaging/crates.py` writes; `None` without Python, which CI has.
fn crates(what: &str) -> Option<String> {
    let script = format!("{ROOT}/packaging/crates.py");
    let output = Command::new("python3").args([&script, what]).output();
    let Ok(output) = output else {
        assert!(std::env::var_os("CI").is_none(), "CI needs python3");
        println!("NOT RUN: there is no python3 on this machine");
        return None;
    };
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{problem}");
    Some(String::from_utf8(output.stdout).expect("a text"))
}

#[test]
fn every_crate_of_the_program_has_a_licence_text() {
    let (Some(texts), Some(list)) = (crates("licences"), crates("sbom")) else {
        return;
    };
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["bomFormat"], "CycloneDX");
    let components = list["components"].as_array().expect("components");
    assert!(components.len() > 100, "{}", components.len());
    let foreign = components.iter().filter(|of| of["hashes"].is_array());
    let heads: String = texts
        .lines()
        .filter(|line| line.starts_with("Of "))
        .collect();
    for component in foreign {
        let part = |key: &str| component[key].as_str().expect("a text").to_owned();
        let named = format!("{} {}", part("name"), part("version"));
        assert!(heads.contains(&named), "no licence of {named}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = scratch();
    printed(&["man-pages", text(folder.path())]);
    let pages = std::fs::read_dir(folder.path()).expect("a folder");
    let names = pages.map(|page| page.expect("a page").file_name());
    let names: BTreeSet<String> = names.map(|name| name.to_string_lossy().into()).collect();
    for page in [
        "bench.1",
        "bench-serve.1",
        "bench-lab-run.1",
        "bench-doctor.1",
    ] {
        assert!(names.contains(page), "{page} in {names:?}");
    }
    let page = std::fs::read_to_string(folder.path().join("bench-serve.1")).expect("a page");
    assert!(page.contains("\\-\\-parallel"), "{page}");
}

#[test]
fn the_configuration_of_the_service_has_keys_that_the_server_knows() {
    let folder = scratch();
    let shipped = file("packaging/bench.toml");
    let path = folder.path().join("bench.toml");
    let check = |config: &str| {
        std::fs::write(&path, config).expect("it is written");
        printed(&["serve", "--config", text(&path), "--print-config"])
    };
    check(&shipped);
    // The proposed lines, each in the place of one that has the same key. A server has one model, or a folder of them.
    let proposed = shipped.lines().filter_map(|line| line.strip_prefix("# "));
    let proposed = proposed.filter_map(|line| line.split_once(" = "));
    let (models, proposed): (Vec<_>, Vec<_>) = proposed.partition(|(key, _)| *key == "models");
    assert!(proposed.len() > 5, "{proposed:?}");
    for proposed in [models, proposed] {
        let lines = proposed
            .iter()
            .map(|(key, value)| format!("{key} = {value}\n"));
        let shown = check(&lines.collect::<String>());
        for (key, _) in proposed {
            assert!(shown.contains(key), "{key}: {shown}");
        }
    }
}

#[test]
fn the_client_for_python_has_the_version_of_the_program() {
    let project: toml::Value =
        toml::from_str(&file("clients/python/pyproject.toml")).expect("TOML");
    let version = project["project"]["version"].as_str();
    assert_eq!(version, Some(env!("CARGO_PKG_VERSION")));
    assert!(file("CHANGELOG.md").contains(concat!("\n## ", env!("CARGO_PKG_VERSION"), "\n")));
}
