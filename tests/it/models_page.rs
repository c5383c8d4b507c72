//! `docs/models.md` is what the maps, the list of missing ones and the goldens say: `make models` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use lab_core::arch::{Library, Mode};
use lab_core::hf::Maps;
use lab_core::plan::Media;

use crate::goldens::{archs_of, library};
use crate::support::hf;

/// A row of the table of classes.
#[derive(Default)]
struct Class {
    definition: String,
    state: String,
    /// What is computed.
    output: &'static str,
    proof: String,
}

const TOP: &str = "\
# Models

This page lists Hugging Face folders by class, the name in `architectures` of `config.json`. A GGUF file runs if its architecture has a definition
([archs](../archs)). The page is written by `make models` from `stmaps/`, `archs/` and `tests/hf/`; do not edit.

## Classes

- **Definition**: the architecture that the folder becomes.
- **State**: *opens*; *with pictures*, *with sounds*: its towers open too ([media.md](media.md)); *text part*, a multimodal model of which the text
  model opens, and one line of the log says what is left out; or *not yet*, with the reason.
- **Output**: what is computed. *Logits* are those of the next token, in a model with masks those of each token. *Hidden states* are the last ones, of
  which embeddings of texts are made; what other training tasks add is not computed. *Scores* are those of the classes of a text, *token scores* those
  of the classes of each token.
- **Test**: tiny folders in `tests/hf` whose logits are compared with those of transformers. *Equal class*: transformers does not have the class; the
  logits come from a class that equals the published code, or from its formulas in PyTorch.

Classes that end in `ForSequenceClassification` or `ForTokenClassification` open by the map of their base class: that of the same name which ends in
`ForCausalLM`, `LMHeadModel`, `ForMaskedLM` or `Model`. The list has those with a test.

Encoders with a head of language models (`...ForMaskedLM`, `...ForPreTraining`, `...LMHeadModel`, `...ForCausalLM`) give its logits; their vectors are
of the hidden states before the head. `is_decoder` makes their attention causal. A folder with `modules.json` is an embedding model: its head is left
out, and `bench logits` writes hidden states, as it does for a class without a head.

The map of a class that transformers uses for several types of models follows from `model_type`: `LlamaForCausalLM` may be `exaone`.

`HYV4ForCausalLM` rotates neighbours at the ends of heads, as vLLM, SGLang and llama.cpp do; transformers 5.24 rotates halves of the same tensors.

| class | definition | state | output | test |
|---|---|---|---|---|
";

const WITHOUT: &str = "
## Definitions without a class

GGUF files of these architectures run; no folder opens as one of them: ";

const QUANTISED: &str = "

## Quantised folders

| method | state | test |
|---|---|---|
";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn table(path: &Path) -> toml::Table {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse()
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What a class computes, by the golden of it if there is one, otherwise by its name, the modes of its definitions, and
/// whether its map has a head.
fn output(
    class: &str,
    (archs, library, has_head): (&[String], &Library, bool),
    golden: Option<&str>,
) -> &'static str {
    let is_encoder = |arch: &String| {
        let def = library.get(arch).expect("a sound definition");
        def.mode == Mode::Encoder
    };
    let is_bare = class.ends_with("Model") && !class.ends_with("LMHeadModel");
    match golden {
        Some("scores") => "scores",
        Some("token_scores") => "token scores",
        Some("hidden") => "hidden states",
        Some(_) => "logits",
        None if class.ends_with("ForTokenClassification") => "token scores",
        None if class.ends_with("ForSequenceClassification") => "scores",
        None if is_bare => "hidden states",
        None if archs.iter().any(is_encoder) && !has_head => "hidden states",
        None => "logits",
    }
}

/// The outputs of goldens by class.
fn golden_outputs() -> BTreeMap<String, String> {
    let outputs = hf::names().into_iter().map(|name| {
        let folder = hf::open(&name);
        let output = folder.output_name().to_owned();
        (folder.class, output)
    });
    outputs.collect()
}

/// Names of goldens by class.
fn proofs() -> BTreeMap<String, String> {
    let cases = table(&root().join("tests/hf/cases.toml"));
    let cases = cases["case"].as_array().expect("cases");
    let is_equal: BTreeSet<&str> = cases
        .iter()
        .filter(|case| case.get("remote").is_some())
        .filter_map(|case| case["name"].as_str())
        .collect();
    let mut by_class: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in hf::names() {
        by_class
            .entry(hf::open(&name).class)
            .or_default()
            .push(name);
    }
    let text = |names: &Vec<String>| {
        let all: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let kind = match is_equal.contains(names[0].as_str()) {
            true => "equal class: ",
            false => "",
        };
        format!("{kind}{}", all.join(", "))
    };
    let proofs = by_class.iter();
    proofs
        .map(|(class, names)| (class.clone(), text(names)))
        .collect()
}

/// A map for a tower of a class.
struct ClassTower {
    map: String,
    definition: String,
    media: Media,
}

/// The towers of each class that has some.
fn tower_classes() -> BTreeMap<String, Vec<ClassTower>> {
    let maps = Maps::towers(&[]).expect("maps");
    let mut all: BTreeMap<String, Vec<ClassTower>> = BTreeMap::new();
    for (name, source) in maps.sources() {
        let map: toml::Table = source.text.parse().expect("a sound map");
        // The definition is that of the map which this one extends, unless it names one.
        let mut named = map.clone();
        while !named.contains_key("arch") {
            let base = named["extends"].as_str().expect("a map");
            let base = maps.source(base).expect("a map that is extended");
            named = base.text.parse().expect("a sound map");
        }
        let definition = archs_of(&named).swap_remove(0);
        let file = table(&root().join(format!("archs/{definition}.tower.toml")));
        let media = match file["input"]["media"].as_str() {
            Some("image") => Media::Image,
            Some("audio") => Media::Audio,
            other => panic!("{definition} reads {other:?}"),
        };
        for class in map["classes"].as_array().expect("classes") {
            let (map, definition) = (name.to_owned(), definition.clone());
            let class = class.as_str().expect("a name").to_owned();
            let own = ClassTower {
                map,
                definition,
                media,
            };
            all.entry(class).or_default().push(own);
        }
    }
    all
}

fn with_media(towers: &[ClassTower]) -> String {
    let media: BTreeSet<&str> = towers.iter().map(|tower| name_of(tower.media)).collect();
    let media: Vec<&str> = media.into_iter().collect();
    format!("opens, with {}", media.join(" and "))
}

fn name_of(media: Media) -> &'static str {
    match media {
        Media::Image => "pictures",
        Media::Audio => "sounds",
    }
}

/// The tables of docs/media.md: the towers of classes, and the processor files.
fn media_tables() -> String {
    let mut out = "| class | reads | definition | map |\n|---|---|---|---|\n".to_owned();
    for (class, towers) in tower_classes() {
        for ClassTower {
            map,
            definition,
            media,
        } in towers
        {
            let reads = name_of(media);
            writeln!(out, "| `{class}` | {reads} | `{definition}` | `{map}` |").expect("a String");
        }
    }
    out += "\n| processor file | classes of processors | types of image processors and feature extractors |\n|---|---|---|\n";
    let files = std::fs::read_dir(root().join("stmaps")).expect("stmaps/");
    let mut files: Vec<_> = files.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    for path in files {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        let Some(name) = name.strip_suffix(".processor.toml") else {
            continue;
        };
        let file = table(&path);
        let names = |keys: &[&str]| {
            let lists = keys.iter().filter_map(|key| file.get(*key)?.as_array());
            let names = lists.flatten().filter_map(toml::Value::as_str);
            let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
            names.join(", ")
        };
        let (classes, types) = (names(&["classes"]), names(&["types", "feature_extractors"]));
        if !classes.is_empty() || !types.is_empty() {
            writeln!(out, "| `{name}` | {classes} | {types} |").expect("a String");
        }
    }
    out
}

/// All classes by name, and the definitions that have one.
fn classes() -> (BTreeMap<String, Class>, BTreeSet<String>) {
    let maps = Maps::open(&[]).expect("maps");
    let mut all: BTreeMap<String, Class> = BTreeMap::new();
    let towers = tower_classes();
    let mut used = BTreeSet::new();
    let mut proofs = proofs();
    let (outputs, library) = (golden_outputs(), library());
    let output_of = |class: &str, archs: &[String], has_head: bool| {
        let golden = outputs.get(class).map(String::as_str);
        output(class, (archs, &library, has_head), golden)
    };
    for (name, source) in maps.sources() {
        let map: toml::Table = source.text.parse().expect("a sound map");
        let archs = archs_of(&map);
        let is_nested = archs.is_empty() || map.contains_key("nested");
        let definitions: Vec<String> = archs.iter().map(|arch| format!("`{arch}`")).collect();
        used.extend(archs.iter().cloned());
        let tensors = map.get("tensors").and_then(toml::Value::as_table);
        let has_head = tensors.is_some_and(|tensors| {
            let mut heads = ["output", "output.weight"].iter();
            heads.any(|head| tensors.contains_key(*head))
        });
        for class in map["classes"].as_array().expect("classes") {
            let class = class.as_str().expect("a name");
            let row = Class {
                definition: definitions.join(", "),
                state: match towers.get(class) {
                    Some(towers) => with_media(towers),
                    None if is_nested && !class.ends_with("ForCausalLM") => "text part".to_owned(),
                    None => "opens".to_owned(),
                },
                output: output_of(class, &archs, has_head),
                proof: proofs.remove(class).unwrap_or_default(),
            };
            let twice = all.insert(class.to_owned(), row);
            assert!(twice.is_none(), "{name}: `{class}` has two maps");
        }
    }
    for need in lab_core::hf::missing().expect("stmaps/missing.toml") {
        for class in need.classes {
            let row = Class {
                state: format!("not yet: needs {}", need.what),
                ..Class::default()
            };
            assert!(
                all.insert(class.clone(), row).is_none(),
                "stmaps/missing.toml: `{class}` has a map, or is there twice"
            );
        }
    }
    // Their map is that of a class with another ending: `[endings]` of stmaps/common.toml.
    for (class, proof) in proofs {
        let state = "opens, by the map of its base class".to_owned();
        let row = Class {
            state,
            output: output_of(&class, &[], false),
            proof,
            ..Class::default()
        };
        assert!(
            all.insert(class.clone(), row).is_none(),
            "stmaps/missing.toml: `{class}` has a golden"
        );
    }
    (all, used)
}

fn page() -> String {
    let (classes, used) = classes();
    let mut out = TOP.to_owned();
    let mut rows: Vec<_> = classes.iter().collect();
    rows.sort_by_key(|(name, _)| name.to_lowercase());
    for (name, row) in rows {
        let Class {
            definition,
            state,
            output,
            proof,
        } = row;
        writeln!(
            out,
            "| `{name}` | {definition} | {state} | {output} | {proof} |"
        )
        .expect("a String");
    }
    let archs = library();
    let without: Vec<String> = archs
        .sources()
        .map(|(name, _)| name)
        .filter(|name| !used.contains(*name))
        .map(|name| format!("`{name}`"))
        .collect();
    write!(out, "{WITHOUT}{}.{QUANTISED}", without.join(", ")).expect("a String");
    let methods = table(&root().join("stmaps/quantised.toml"));
    for method in methods["method"].as_array().expect("methods") {
        let text = |key: &str| method[key].as_str().expect("a text").to_owned();
        let (name, state, proof) = (text("name"), text("state"), text("proof"));
        writeln!(out, "| {name} | {state} | {proof} |").expect("a String");
    }
    out
}

#[test]
fn the_page_of_models_is_up_to_date() {
    let path = root().join("docs/models.md");
    let page = page();
    if std::env::var_os("MODELS_PAGE").is_some() {
        std::fs::write(&path, &page).expect("docs/models.md can be written");
    }
    let stored = std::fs::read_to_string(path).expect("docs/models.md is there");
    assert!(
        stored == page,
        "docs/models.md is not what maps and goldens say: make models"
    );
}

#[test]
fn the_tables_of_media_are_up_to_date() {
    const MARKS: [&str; 2] = [
        "<!-- tables of `make models` -->\n",
        "<!-- end of the tables -->\n",
    ];
    let path = root().join("docs/media.md");
    let stored = std::fs::read_to_string(&path).expect("docs/media.md is there");
    let [begin, end] = MARKS.map(|mark| stored.find(mark).expect("the mark of the tables"));
    let begin = begin + MARKS[0].len();
    let page = format!(
        "{}\n{}\n{}",
        &stored[..begin],
        media_tables(),
        &stored[end..]
    );
    if std::env::var_os("MODELS_PAGE").is_some() {
        std::fs::write(&path, &page).expect("docs/media.md can be written");
    }
    let stored = std::fs::read_to_string(path).expect("docs/media.md is there");
    assert!(
        stored == page,
        "docs/media.md is not what maps say: make models"
    );
}
