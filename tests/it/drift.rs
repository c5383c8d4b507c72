//! `bench lab drift`: which layer computes other numbers.

use std::path::Path;

use lab_base::weights;
use serde_json::Value;

use crate::support::command::{check_refused, made_up, printed, scratch, text};

const TOKENS: &str = "1,7,9,3,3,8,20,4,11,2,5";

fn drift(models: &[&Path], more: &[&str]) -> Value {
    let mut arguments = vec!["lab", "drift"];
    arguments.extend(models.iter().map(|model| text(model)));
    arguments.extend(["--json", "--threads", "1"]);
    arguments.extend(more);
    serde_json::from_str(&printed(&arguments)).expect("JSON")
}

fn column(report: &Value, name: &str) -> Vec<f64> {
    let layers = report["layers"].as_array().expect("layers");
    layers
        .iter()
        .map(|layer| layer[name].as_f64().expect("a number"))
        .collect()
}

#[test]
fn a_layer_that_differs_is_found_and_the_others_have_no_error_of_their_own() {
    let folder = scratch();
    for arch in ["llama", "gemma2", "mamba2"] {
        let model = made_up(folder.path(), arch, &["--set", "block_count=4"]);
        let same = drift(&[&model], &["--tokens", TOKENS]);
        assert_eq!(column(&same, "nmse"), [0.0; 4], "{arch}");
        assert_eq!(
            (&same["logits_nmse"], &same["kl"]["mean"]),
            (&0.0.into(), &0.0.into())
        );
        // The same file but for a weight of layer 2.
        let opened = weights::open(&model).expect("a model");
        let tensor = opened
            .tensors()
            .iter()
            .find(|t| t.name.starts_with("blk.2.") && t.elements() > 1000);
        let (_, offset) = opened
            .place(tensor.expect("a matrix"))
            .expect("in the file");
        let mut bytes = std::fs::read(&model).expect("readable");
        for element in bytes[offset..offset + 400].as_chunks_mut::<4>().0 {
            *element = (f32::from_le_bytes(*element) * 1.5).to_le_bytes();
        }
        let other = folder.path().join(format!("{arch}-other.gguf"));
        std::fs::write(&other, bytes).expect("written");
        let found = drift(&[&model, &other], &["--tokens", TOKENS]);
        let (total, own) = (column(&found, "nmse"), column(&found, "own_nmse"));
        assert_eq!(
            (&total[..2], own[0], own[1], own[3]),
            (&[0.0; 2][..], 0.0, 0.0, 0.0),
            "{arch}"
        );
        assert!(
            own[2] > 1e-12 && total[2] > 1e-12 && total[3] > 0.0,
            "{arch}: {found}"
        );
        assert!(found["kl"]["mean"].as_f64().expect("a number") > 0.0);
        check_overlay(&model, &found);
    }
}

/// The report colours a diagram, by both of its errors.
fn check_overlay(model: &Path, report: &Value) {
    let folder = scratch();
    let file = folder.path().join("drift.json");
    std::fs::write(&file, report.to_string()).expect("written");
    for (quantity, legend) in [
        ("error", "Error of the hidden state (NMSE)"),
        (
            "own error",
            "Own error of the layer, given the input of A (NMSE)",
        ),
    ] {
        let out = folder.path().join(quantity.replace(' ', "-"));
        let draw = [
            "diagram",
            text(model),
            "--overlay",
            text(&file),
            "-o",
            text(&out),
        ];
        printed(&[&draw[..], &["--quantity", quantity]].concat());
        let pictures = std::fs::read_dir(&out).expect("a folder").map(|file| {
            std::fs::read_to_string(file.expect("an entry").path()).expect("a picture")
        });
        let pictures: Vec<String> = pictures.collect();
        assert!(
            !pictures.is_empty() && pictures.iter().all(|picture| picture.contains(legend)),
            "{quantity}"
        );
        // What was changed is in layer 2.
        if quantity == "own error" {
            assert!(
                pictures
                    .iter()
                    .any(|picture| picture.contains("in layer 2"))
            );
        }
    }
}

#[test]
fn weights_and_caches_are_quantised_for_the_second_model_alone() {
    let read = ["--text", "What is two and two?"];
    let with = |more: &[&str]| {
        let mut arguments = read.to_vec();
        arguments.extend(more);
        drift(&[Path::new("tiny-chat")], &arguments)
    };
    let (q8, q4) = (with(&["--b-type", "q8_0"]), with(&["--b-type", "q4_0"]));
    let logits = |report: &Value| report["logits_nmse"].as_f64().expect("a number");
    assert!(
        logits(&q4) > 4.0 * logits(&q8) && logits(&q8) > 0.0,
        "{q8} {q4}"
    );
    let cache = with(&["--path", "cache=q8_0"]);
    let (total, own) = (column(&cache, "nmse"), column(&cache, "own_nmse"));
    assert!(own[0] > 0.0 && own[0] == total[0], "{cache}");
    let shown = printed(&[
        "lab",
        "drift",
        "tiny-chat",
        read[0],
        read[1],
        "--b-type",
        "q4_0",
    ]);
    assert!(shown.contains("KL divergence over"), "{shown}");
    for (more, message) in [
        (
            &["--path", "stateless", "--tokens", "1,2"][..],
            "read in one pass",
        ),
        (&[][..], "there is no text"),
        (&["--file", "/dev/zero"], "more than 16777216 bytes"),
        (&["--tokens", "1,99999"], "99999"),
    ] {
        let mut arguments = vec!["lab", "drift", "tiny-chat"];
        arguments.extend(more);
        check_refused(&arguments, 1, &[message]);
    }
}
