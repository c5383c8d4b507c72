//! Every filter, test and method of Jinja2 on generated arguments, against Jinja2's own results.
//!
//! `scripts/make_template_goldens.py` made `tests/goldens/template_filters.json` with the engine that
//! transformers sets up. [`DIFFERENT`] lists what is not the same, with the reason.

use serde_json::Value as Json;

use super::tests::render;

/// Forms, or single cases, whose results are not compared, with the reason.
const DIFFERENT: &[(&str, &str)] = &[
    ("@|wordwrap(10)", WEB),
    ("@|wordwrap(6,false)", WEB),
    ("@|wordwrap(8,wrapstring='|')", WEB),
    ("@|wordwrap(12,break_on_hyphens=false)", WEB),
    ("@|urlize", WEB),
    ("cycler('a',@).next()", WEB),
    ("joiner(@)()", WEB),
    ("'%r' % @", REPR),
    ("'{:>8}|{!r}'.format(@,@)", REPR),
    ("'{a}'.format(a=@)", REPR),
    ("@ < 2", ORDER),
    ("@ >= 'a'", ORDER),
    ("-(@)", "the engine has no minus for booleans"),
    (
        "@|pprint",
        "keys are not sorted and long values not broken into lines",
    ),
    ("@.isdecimal()", DIGITS),
    ("@.isdigit()", DIGITS),
    (
        "@|tojson(sort_keys=true)",
        "keys of several kinds are an error in Python",
    ),
];
/// Not offered: of no use in a prompt, and no template in our collection has one.
const WEB: &str = "lays out web pages or keeps a state";
const REPR: &str = "the engine's formats print values in its own way";
const ORDER: &str = "the engine orders values of different kinds, which Python refuses to compare";
const DIGITS: &str = "the standard library does not know the kinds of numerals";

#[test]
fn filters_tests_and_methods_are_those_of_jinja2() {
    let text = include_str!("../../../tests/goldens/template_filters.json");
    let file: Json = serde_json::from_str(text).expect("JSON");
    let list = |json: &Json| json.as_array().expect("a list").clone();
    let (values, forms) = (list(&file["values"]), list(&file["forms"]));
    let mut wrong = Vec::new();
    let (mut n_cases, mut n_left_out) = (0, 0);
    for form in &forms {
        let form = list(form);
        let expression = form[0].as_str().expect("an expression");
        if DIFFERENT.iter().any(|(other, _)| *other == expression) {
            n_left_out += 1;
            continue;
        }
        for case in form[1..].chunks_exact(2) {
            n_cases += 1;
            let value = case[0].as_u64().expect("an index") as usize;
            let value = values[value].as_str().expect("a literal");
            let source = format!(
                "{{{{ {} }}}}",
                expression.replace('@', &format!("({value})"))
            );
            let found = try_render(&source);
            if found.as_deref() != case[1].as_str() {
                wrong.push(format!(
                    "{source}\n  gives    {found:?}\n  expected {:?}",
                    case[1].as_str()
                ));
            }
        }
    }
    assert_eq!(n_left_out, DIFFERENT.len(), "a form is no more");
    assert!(n_cases > 5000, "{n_cases} cases");
    assert!(
        wrong.is_empty(),
        "{} of {n_cases} cases differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// What a template gives; none if it cannot be compiled or fails.
fn try_render(source: &str) -> Option<String> {
    super::ChatTemplate::new(source).ok()?;
    render(source).ok()
}
