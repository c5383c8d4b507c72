//! The JSON Schema of the language, for editors, from the keys that the readers ask for ([`ValueForm`]).
//!
//! A text with every kind of table is read, its problems are dropped, and the keys that were asked for are recorded. So
//! there is no second list of keys that could differ from the reader's. The schema has keys, types and words; only
//! `bench arch check` checks names, expressions and shapes.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use toml::de::DeTable;

use super::contract::{Contract, OptionKind, OptionSpec, Registry, Resource};
use super::definition::CommonDefinitions;
use super::read::DefinitionReader;
use super::table::{KeySpec, ValueForm};

/// A character that is not part of a plain word: the text is an expression.
const EXPRESSION: &str = "[^A-Za-z0-9_./-]";

impl Registry {
    /// The JSON Schema (2020-12) of a definition.
    pub fn schema(&'static self) -> Value {
        let mut kinds = self.kinds_of("embed = {}\n");
        // A tower has other tables than a model.
        for (kind, of_tower) in self.kinds_of("mode = \"tower\"\ninput = {}\n") {
            let keys = kinds.entry(kind).or_default();
            let is_among = |key: &KeySpec, keys: &[KeySpec]| keys.iter().any(|k| k.key == key.key);
            for key in keys.iter_mut() {
                key.is_required &= is_among(key, &of_tower);
            }
            let is_new = keys.is_empty();
            for mut key in of_tower {
                if !is_among(&key, keys) {
                    key.is_required &= is_new;
                    keys.push(key);
                }
            }
        }
        described("a definition", &kinds, self.blocks)
    }

    /// The keys of every kind of table, of definitions with this start.
    fn kinds_of(&'static self, start: &str) -> BTreeMap<&'static str, Vec<KeySpec>> {
        let text = self.every_table(start);
        let (root, _) = DeTable::parse_recoverable(&text);
        let mut reader = DefinitionReader::new(&text, self);
        reader.definition(root.get_ref(), &CommonDefinitions::default());
        reader.kinds()
    }

    /// A text with a table of every kind that a definition with this start may have.
    fn every_table(&self, start: &str) -> String {
        let mut text = format!(
            "{start}params.x = {{ key = \"x\" }}\nassumptions.x = {{ value = 1 }}\nignore = {{}}\n\
             per_layer_input = {{}}\nhead = {{}}\npool = {{}}\ntarget = {{}}\n"
        );
        for kind in Resource::ALL {
            text.push_str(&format!("{}.x = {{}}\n", kind.name()));
        }
        let branch = |block: &&Contract| format!("{{ block = \"{}\" }}", block.name);
        let branches: Vec<String> = self.blocks.iter().map(branch).collect();
        text + &format!(
            "stack = [{{ slot = [{{ branch = [{}] }}] }}]\n",
            branches.join(", ")
        )
    }
}

/// A JSON Schema of tables by their kinds. `root` is the kind of the whole file; `blocks` are the blocks that a branch
/// may run.
pub(crate) fn described(
    root: &str,
    kinds: &BTreeMap<&'static str, Vec<KeySpec>>,
    blocks: &[&'static Contract],
) -> Value {
    let mut tables = Map::new();
    for (kind, keys) in kinds {
        let block = blocks.iter().find(|block| block.name == *kind);
        tables.insert(short(kind).into(), table(keys, block.copied()));
    }
    if !blocks.is_empty() {
        let branch = branch(blocks, &tables);
        tables.insert("branch".into(), branch);
    }
    let mut whole = Map::new();
    whole.insert(
        "$schema".into(),
        "https://json-schema.org/draft/2020-12/schema".into(),
    );
    let file = tables.shift_remove(short(root));
    whole.extend(
        file.and_then(|file| file.as_object().cloned())
            .unwrap_or_default(),
    );
    whole.insert("$defs".into(), tables.into());
    whole.into()
}

/// The last word of a kind.
fn short(kind: &str) -> &str {
    kind.rsplit(' ').next().unwrap_or(kind)
}

fn reference(kind: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{}", short(kind)) })
}

fn table(keys: &[KeySpec], block: Option<&Contract>) -> Value {
    let mut properties = Map::new();
    for known in keys.iter().filter(|known| known.is_possible()) {
        let value = match block {
            Some(block) if known.key == "block" => json!({ "const": block.name }),
            _ => form(&known.form),
        };
        properties.insert(known.key.into(), value);
    }
    let required = keys.iter().filter(|known| known.is_required);
    let required: Vec<&str> = required.map(|known| known.key).collect();
    let mut object = json!({ "type": "object" });
    if let Some(block) = block {
        object["description"] = block.summary.into();
    }
    object["properties"] = properties.into();
    if !required.is_empty() {
        object["required"] = required.into();
    }
    object["additionalProperties"] = false.into();
    object
}

/// The schema of a branch: the block's name decides about the other keys. Editors that propose keys without evaluating
/// conditions see the keys of all blocks.
fn branch(blocks: &[&'static Contract], tables: &Map<String, Value>) -> Value {
    let names: Vec<&str> = blocks.iter().map(|block| block.name).collect();
    let mut properties = Map::new();
    properties.insert("block".into(), json!({ "enum": names }));
    let of_blocks = names
        .iter()
        .filter_map(|name| tables.get(*name)?["properties"].as_object());
    for (key, value) in of_blocks.flatten() {
        let about = value
            .get("description")
            .map(|text| json!({ "description": text }));
        let entry = properties.entry(key.as_str());
        entry.or_insert_with(|| about.unwrap_or_else(|| json!({})));
    }
    let of_block = |name: &&str| {
        json!({
            "if": { "properties": { "block": { "const": name } }, "required": ["block"] },
            "then": reference(name),
        })
    };
    let cases: Vec<Value> = names.iter().map(of_block).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": ["block"],
        "allOf": cases,
    })
}

fn form(form_of: &ValueForm) -> Value {
    match form_of {
        ValueForm::Text => json!({ "type": "string" }),
        ValueForm::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        ValueForm::Name => json!({ "type": "string", "minLength": 1 }),
        ValueForm::Word(words) => json!({ "enum": words }),
        ValueForm::Flag => json!({ "type": "boolean" }),
        ValueForm::Number => json!({ "type": ["number", "string"] }),
        ValueForm::Condition => json!({ "type": ["boolean", "string"] }),
        ValueForm::Value => json!({ "type": ["number", "boolean", "string"] }),
        ValueForm::Either(forms) => {
            let forms: Vec<Value> = forms.iter().map(form).collect();
            json!({ "anyOf": forms })
        }
        ValueForm::List(of) => json!({ "type": "array", "items": form(of) }),
        ValueForm::Map(of) => json!({ "type": "object", "additionalProperties": form(of) }),
        ValueForm::Table(kind) => reference(kind),
        ValueForm::Tables(kind) => {
            json!({ "type": "object", "additionalProperties": reference(kind) })
        }
        ValueForm::Branch => reference("branch"),
        ValueForm::Option(spec) => option(spec),
        ValueForm::Weights(contract) => weights(contract),
        ValueForm::Derived(_) => false.into(),
    }
}

fn option(spec: &OptionSpec) -> Value {
    let mut value = match spec.kind {
        OptionKind::Int | OptionKind::List => {
            json!({ "type": ["integer", "string"], "minimum": 0 })
        }
        OptionKind::Float => json!({ "type": ["number", "string"] }),
        OptionKind::Bool => json!({ "type": ["boolean", "string"] }),
        OptionKind::Choice(names) => json!({
            "type": "string",
            "anyOf": [{ "enum": names }, { "pattern": EXPRESSION }],
        }),
        OptionKind::Resource(_) => json!({ "type": "string", "minLength": 1 }),
    };
    let mut text = super::reference::meaning(spec);
    if let Some(default) = spec.default {
        text.push_str(&format!(". Default: `{default}`"));
    }
    value["description"] = text.into();
    value
}

fn weights(contract: &Contract) -> Value {
    let mut properties = Map::new();
    for weight in contract.weights {
        let shape = weight.shape.join(", ");
        let text = format!("{}: `{}` [{shape}]", weight.doc, weight.tensor);
        let value = json!({ "type": ["string", "boolean"], "description": text });
        properties.insert(weight.key.into(), value);
    }
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}
