//! `bench arch schema`: every definition and map fits it, and what the reader refuses for its keys, types and
//! words does not.

use lab_core::arch::Library;
use lab_core::blocks::REGISTRY;
use lab_core::hf;
use regex_automata::meta::Regex;
use serde_json::{Value, json};

/// The words of JSON Schema that the checker knows.
const WORDS: [&str; 18] = [
    "$schema",
    "$defs",
    "$ref",
    "description",
    "type",
    "enum",
    "const",
    "pattern",
    "minLength",
    "minimum",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "anyOf",
    "allOf",
    "if",
    "then",
];

/// A checker of the part of JSON Schema that the schemas use.
struct Checker<'a> {
    root: &'a Value,
}

impl Checker<'_> {
    /// The first place that does not fit, with the reason.
    fn check(&self, at: &str, schema: &Value, value: &Value) -> Result<(), String> {
        let fault = |what: String| Err(format!("{at}: {what}"));
        let fields = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Object(fields) => fields,
            other => return fault(format!("{value} where the schema is {other}")),
        };
        for word in fields.keys() {
            assert!(WORDS.contains(&word.as_str()), "{word}");
        }
        if let Some(name) = fields.get("$ref") {
            let name = name.as_str().and_then(|name| name.strip_prefix('#'));
            let target = self.root.pointer(name.expect("a reference within"));
            return self.check(at, target.expect("it is defined"), value);
        }
        let is_of = |kind: &Value| match kind.as_str().expect("a name of a type") {
            "string" => value.is_string(),
            "number" => value.is_number(),
            "integer" => value.is_u64() || value.is_i64(),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("unknown type {other}"),
        };
        let fits = match fields.get("type") {
            None => true,
            Some(Value::Array(kinds)) => kinds.iter().any(is_of),
            Some(kind) => is_of(kind),
        };
        let within =
            |word: &str, holds: &dyn Fn(&Value) -> bool| fields.get(word).is_none_or(holds);
        let text = value.as_str().unwrap_or_default();
        let fits = fits
            && within("const", &|one| one == value)
            && within("enum", &|all| {
                all.as_array().expect("a list").contains(value)
            })
            && within("minLength", &|n| {
                !value.is_string() || text.len() as u64 >= n.as_u64().expect("a number")
            })
            && within("minimum", &|n| {
                value
                    .as_f64()
                    .is_none_or(|v| v >= n.as_f64().expect("a number"))
            })
            && within("pattern", &|pattern| {
                let pattern = Regex::new(pattern.as_str().expect("a text")).expect("a pattern");
                !value.is_string() || pattern.is_match(text)
            });
        if !fits {
            return fault(format!("{value} does not fit {schema}"));
        }
        if let Value::Array(items) = value
            && let Some(of_items) = fields.get("items")
        {
            for (i, item) in items.iter().enumerate() {
                self.check(&format!("{at}/{i}"), of_items, item)?;
            }
        }
        if let Value::Object(entries) = value {
            for key in fields
                .get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                if !entries.contains_key(key.as_str().expect("a key")) {
                    return fault(format!("{key} is missing"));
                }
            }
            let known = fields.get("properties").and_then(Value::as_object);
            for (key, entry) in entries {
                let schema = known.and_then(|known| known.get(key));
                if let Some(schema) = schema.or(fields.get("additionalProperties")) {
                    self.check(&format!("{at}/{key}"), schema, entry)?;
                }
            }
        }
        if let Some(any) = fields.get("anyOf").and_then(Value::as_array) {
            let faults: Vec<String> = any
                .iter()
                .map_while(|schema| self.check(at, schema, value).err())
                .collect();
            if faults.len() == any.len() {
                return fault(faults.join("; "));
            }
        }
        for schema in fields
            .get("allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            self.check(at, schema, value)?;
        }
        match (fields.get("if"), fields.get("then")) {
            (Some(case), Some(then)) if self.check(at, case, value).is_ok() => {
                self.check(at, then, value)
            }
            _ => Ok(()),
        }
    }
}

fn check(schema: &Value, text: &str) -> Result<(), String> {
    let table: toml::Table = text.parse().expect("TOML");
    let value = serde_json::to_value(table).expect("JSON has no dates");
    Checker { root: schema }.check("", schema, &value)
}

/// Every text of a folder with this ending.
fn texts(folder: &str, ending: &str) -> Vec<(String, String)> {
    let folder = format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder).expect("it is there");
    let files = files.map(|file| file.expect("readable").path());
    let named = files.filter_map(|path| {
        let name = path.file_name()?.to_str()?.to_owned();
        let text = std::fs::read_to_string(&path).expect("readable");
        name.ends_with(ending).then_some((name, text))
    });
    named.collect()
}

#[test]
fn every_definition_and_map_fits_its_schema() {
    let (of_definitions, of_maps) = (REGISTRY.schema(), hf::schema());
    let definitions = texts("archs", ".arch.toml");
    let maps = texts("stmaps", ".arch.stmap.toml");
    assert!(definitions.len() > 100 && maps.len() > 50);
    let of_each = definitions.iter().map(|text| (&of_definitions, text));
    let of_each = of_each.chain(maps.iter().map(|text| (&of_maps, text)));
    let faults: Vec<String> = of_each
        .filter_map(|(schema, (name, text))| Some(format!("{name} {}", check(schema, text).err()?)))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Each form of a schema is defined, and so is each of the options that contracts state.
#[test]
fn a_schema_is_whole() {
    fn references<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                out.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, out));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, out)),
            _ => {}
        }
    }
    for schema in [REGISTRY.schema(), hf::schema()] {
        let mut all = Vec::new();
        references(&schema, &mut all);
        assert!(!all.is_empty());
        for name in all {
            assert!(schema.pointer(&name[1..]).is_some(), "{name}");
        }
    }
    let schema = REGISTRY.schema();
    for contract in REGISTRY.all() {
        let table = &schema["$defs"][contract.name];
        for option in contract.options {
            let stated = table["properties"].get(option.name);
            let name = format!("{} {}", contract.name, option.name);
            assert_eq!(stated.is_some(), !option.is_derived, "{name}");
            let is_required = table["required"]
                .as_array()
                .is_some_and(|all| all.contains(&json!(option.name)));
            assert_eq!(is_required, option.default.is_none(), "{name}");
        }
        for weight in contract.weights {
            assert!(
                table["properties"]["weights"]["properties"]
                    .get(weight.key)
                    .is_some(),
                "{}",
                weight.key
            );
        }
    }
}

/// What the reader refuses and a schema can know does not fit, and the other way round.
#[test]
fn what_the_reader_refuses_does_not_fit() {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let schema = REGISTRY.schema();
    let text = &library.source("llama").expect("built in").text;
    let norm = "pre    = \"attn_norm\"";
    let attention = "block = \"attention\"";
    let cases = [
        (
            "name = \"llama\"",
            "name = \"llama\"\nnam = \"llama\"",
            "/nam",
        ),
        (
            norm,
            "pre = \"attn_norm\"\nprae = \"x\"",
            "/stack/0/slot/0/prae",
        ),
        (norm, "pre = true", "/stack/0/slot/0/pre"),
        (
            norm,
            "pre = \"attn_norm\"\njoin = \"mul\"",
            "/stack/0/slot/0/join",
        ),
        (
            norm,
            "pre = \"attn_norm\"\nscale = true",
            "/stack/0/slot/0/scale",
        ),
        (
            norm,
            "pre = \"attn_norm\"\nwhen = 1",
            "/stack/0/slot/0/when",
        ),
        (
            attention,
            "block = \"atention\"",
            "/stack/0/slot/0/branch/0/block",
        ),
        (
            attention,
            "block = \"attention\", windw = 4",
            "/stack/0/slot/0/branch/0/windw",
        ),
        (
            attention,
            "block = \"attention\", qk_norm = \"heads\"",
            "/stack/0/slot/0/branch/0/qk_norm",
        ),
        (
            attention,
            "block = \"attention\", qk_norm = 3",
            "/stack/0/slot/0/branch/0/qk_norm",
        ),
        (
            attention,
            "block = \"attention\", scale = false",
            "/stack/0/slot/0/branch/0/scale",
        ),
        (
            attention,
            "block = \"attention\", hats = 4",
            "/stack/0/slot/0/branch/0/hats",
        ),
        (
            attention,
            "block = \"attention\", weights = { kq = false }",
            "/stack/0/slot/0/branch/0/weights/kq",
        ),
        (
            attention,
            "block = \"attention\", weights = { o = 1 }",
            "/stack/0/slot/0/branch/0/weights/o",
        ),
        (
            "[[stack]]",
            "[norm.default]\nkind = \"rms\"\neps = 1e-5\nwidth = 3\n\n[[stack]]",
            "/norm/default/width",
        ),
        (
            "[[stack]]",
            "[norm.default]\nkind = \"mean\"\neps = 1e-5\n\n[[stack]]",
            "/norm/default/kind",
        ),
        ("[[stack]]", "[mode]\nx = 1\n[[stack]]", "/mode"),
    ];
    check(&schema, text).expect("as it is built in");
    for (old, new, place) in cases {
        assert!(text.contains(old), "{old}");
        let changed = text.replacen(old, new, 1);
        library.check("mine", &changed).expect_err(new);
        let found = check(&schema, &changed).expect_err(new);
        assert!(found.starts_with(&format!("{place}: ")), "{new}: {found}");
    }
    // An expression may stand for a word, a number or a condition.
    for new in [
        "qk_norm = \"if(il < 1, 'head', 'none')\"",
        "scale = \"1 / sqrt(d_head)\"",
    ] {
        let changed = text.replacen(attention, &format!("{attention}, {new}"), 1);
        library.check("mine", &changed).expect(new);
        check(&schema, &changed).expect(new);
    }
}
