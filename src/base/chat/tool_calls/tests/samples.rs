//! Calls as models write them, in every format of `tools/`: for the parser, and for the grammars that enforce calls.

use serde_json::Value;

use crate::util::test_rows::rows;

/// One format a line: its name, the text before, of, between and after calls, the marks that are tokens of
/// vocabularies, and for formats with marks around each parameter the text of one, with the marks of strings and of
/// other values.
const FORMATS: &str = r#"
json-in-tags ¦ <tool_call>⏎ ¦ {"name": "NAME", "arguments": JSON} ¦ ⏎</tool_call>⏎<tool_call>⏎ ¦ ⏎</tool_call> ¦ <tool_call> </tool_call> ¦ ∅ ¦ ∅ ¦ ∅
functions-in-tags ¦ <tool_call>⏎ ¦ <function=NAME>⏎PARAMETERS</function> ¦ ⏎</tool_call>⏎<tool_call>⏎ ¦ ⏎</tool_call> ¦ <tool_call> </tool_call> ¦ <parameter=KEY>⏎VALUE⏎</parameter>⏎ ¦ ∅ ¦ ∅
functions-in-seed-tags ¦ <seed:tool_call>⏎ ¦ <function=NAME>⏎PARAMETERS</function> ¦ ∅ ¦ ⏎</seed:tool_call> ¦ <seed:tool_call> </seed:tool_call> ¦ <parameter=KEY>VALUE</parameter>⏎ ¦ ∅ ¦ ∅
invoke ¦ <minimax:tool_call>⏎ ¦ <invoke name="NAME">⏎PARAMETERS</invoke> ¦ ⏎ ¦ ⏎</minimax:tool_call> ¦ <minimax:tool_call> </minimax:tool_call> ¦ <parameter name="KEY">VALUE</parameter>⏎ ¦ ∅ ¦ ∅
invoke-marked ¦ <｜DSML｜tool_calls>⏎ ¦ <｜DSML｜invoke name="NAME">⏎PARAMETERS</｜DSML｜invoke> ¦ ⏎ ¦ ⏎</｜DSML｜tool_calls> ¦ ｜DSML｜ ¦ <｜DSML｜parameter name="KEY" string="KIND">VALUE</｜DSML｜parameter>⏎ ¦ true ¦ false
argument-pairs ¦ <tool_call> ¦ NAME⏎PARAMETERS ¦ </tool_call>⏎<tool_call> ¦ </tool_call> ¦ <tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> ¦ <arg_key>KEY</arg_key>⏎<arg_value>VALUE</arg_value>⏎ ¦ ∅ ¦ ∅
bare-json ¦ ∅ ¦ {"name": "NAME", "parameters": JSON} ¦ ;␣ ¦ ∅ ¦ ∅ ¦ ∅ ¦ ∅ ¦ ∅
list-after-mark ¦ [TOOL_CALLS][ ¦ {"name": "NAME", "arguments": JSON} ¦ ,␣ ¦ ] ¦ [TOOL_CALLS] ¦ ∅ ¦ ∅ ¦ ∅
name-after-mark ¦ ∅ ¦ [TOOL_CALLS]NAME[ARGS]JSON ¦ ∅ ¦ ∅ ¦ [TOOL_CALLS] [ARGS] ¦ ∅ ¦ ∅ ¦ ∅
action-list ¦ <|START_ACTION|>[ ¦ {"tool_call_id": "NUMBER", "tool_name": "NAME", "parameters": JSON} ¦ ,␣ ¦ ]<|END_ACTION|> ¦ <|START_ACTION|> <|END_ACTION|> ¦ ∅ ¦ ∅ ¦ ∅
actions-in-code ¦ Action: ```json⏎[ ¦ {"tool_name": "NAME", "parameters": JSON} ¦ ,␣ ¦ ]⏎``` ¦ ∅ ¦ ∅ ¦ ∅ ¦ ∅
list-after-role ¦ <|tool_call|>[ ¦ {"name": "NAME", "arguments": JSON} ¦ ,␣ ¦ ] ¦ <|tool_call|> ¦ ∅ ¦ ∅ ¦ ∅
tool-list ¦ <TOOLCALL>[ ¦ {"name": "NAME", "arguments": JSON} ¦ ,␣ ¦ ]</TOOLCALL> ¦ <TOOLCALL> </TOOLCALL> ¦ ∅ ¦ ∅ ¦ ∅
tool-list-in-tags ¦ <tool_calls>[ ¦ {"name": "NAME", "arguments": JSON} ¦ ,␣ ¦ ]</tool_calls> ¦ ∅ ¦ ∅ ¦ ∅ ¦ ∅
map-in-list ¦ <|tools_prefix|>[ ¦ {"NAME": JSON} ¦ ,␣ ¦ ]<|tools_suffix|> ¦ <|tools_prefix|> <|tools_suffix|> ¦ ∅ ¦ ∅ ¦ ∅
marked-names ¦ <｜tool▁calls▁begin｜> ¦ <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>JSON<｜tool▁call▁end｜> ¦ ⏎ ¦ <｜tool▁calls▁end｜> ¦ <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> ¦ ∅ ¦ ∅ ¦ ∅
marked-code ¦ <｜tool▁calls▁begin｜> ¦ <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME⏎```json⏎JSON⏎```<｜tool▁call▁end｜> ¦ ⏎ ¦ <｜tool▁calls▁end｜> ¦ <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> ¦ ∅ ¦ ∅ ¦ ∅
numbered ¦ <|tool_calls_section_begin|> ¦ <|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>JSON<|tool_call_end|> ¦ ∅ ¦ <|tool_calls_section_end|> ¦ <|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|> ¦ ∅ ¦ ∅ ¦ ∅
function-tags ¦ ∅ ¦ <function=NAME>JSON</function> ¦ ⏎ ¦ ∅ ¦ ∅ ¦ ∅ ¦ ∅ ¦ ∅
marked-notation ¦ <|tool_call>call: ¦ NAMENOTATION ¦ <tool_call|><|tool_call>call: ¦ <tool_call|> ¦ <|tool_call> <tool_call|> <|"|> ¦ ∅ ¦ ∅ ¦ ∅
call-list ¦ <|tool_call_start|>[ ¦ NAME(PYTHON) ¦ ,␣ ¦ ]<|tool_call_end|> ¦ <|tool_call_start|> <|tool_call_end|> ¦ ∅ ¦ ∅ ¦ ∅
bare-call-list ¦ [ ¦ NAME(PYTHON) ¦ ,␣ ¦ ] ¦ ∅ ¦ ∅ ¦ ∅ ¦ ∅
channels ¦ ∅ ¦ ␣to=functions.NAME<|channel|>commentary json<|message|>JSON<|call|> ¦ <|start|>assistant ¦ ∅ ¦ <|channel|> <|message|> <|call|> <|start|> <|end|> ¦ ∅ ¦ ∅ ¦ ∅
message-of-function ¦ <|message_sep|>⏎⏎function call<|role_sep|>⏎ ¦ {"name": "NAME", "arguments": JSON} ¦ <|message_sep|>⏎⏎function call<|role_sep|>⏎ ¦ ∅ ¦ <|message_sep|> <|role_sep|> ¦ ∅ ¦ ∅ ¦ ∅
plain ¦ ∅ ¦ {"name": "NAME", "arguments": JSON} ¦ ∅ ¦ ∅ ¦ ∅ ¦ ∅ ¦ ∅ ¦ ∅
"#;

/// The names of all formats.
pub(crate) fn names() -> impl Iterator<Item = String> {
    rows::<9>(FORMATS).map(|[name, ..]| name)
}

fn fields(format: &str) -> [String; 9] {
    let found = rows(FORMATS).find(|[name, ..]: &[String; 9]| name == format);
    found.unwrap_or_else(|| panic!("no sample of {format}"))
}

/// The marks of a format that are tokens of vocabularies.
pub(crate) fn controls(format: &str) -> Vec<String> {
    let controls = &fields(format)[5];
    controls.split_whitespace().map(str::to_owned).collect()
}

/// The text of calls in a format, each with its name and arguments.
pub(crate) fn sample(format: &str, calls: &[(&str, Value)]) -> String {
    let [_, open, call, between, close, _, parameter, string, other] = fields(format);
    let one = |(number, (name, arguments)): (usize, &(&str, Value))| {
        let all = || arguments.as_object().into_iter().flatten();
        let text = call
            .replace("NAME", name)
            .replace("NUMBER", &number.to_string());
        let parameters = all().map(|(key, value)| {
            let (kind, value) = match value.as_str() {
                Some(text) => (&string, text.to_owned()),
                None => (&other, value.to_string()),
            };
            let head = parameter.replace("KEY", key).replace("KIND", kind);
            head.replace("VALUE", &value)
        });
        let named = all().map(|(key, value)| format!("{key}={}", literal(value, true)));
        let text = text.replace("PARAMETERS", &parameters.collect::<String>());
        let text = text.replace("PYTHON", &named.collect::<Vec<_>>().join(", "));
        let text = text.replace("NOTATION", &literal(arguments, false));
        text.replace("JSON", &arguments.to_string())
    };
    let all: Vec<String> = calls.iter().enumerate().map(one).collect();
    format!("{open}{}{close}", all.join(&between))
}

/// A value in Python's notation, or in the marked one.
fn literal(value: &Value, is_python: bool) -> String {
    let (comma, colon) = if is_python { (", ", ": ") } else { (",", ":") };
    let inner = |value| literal(value, is_python);
    match value {
        Value::String(text) if is_python => format!("'{}'", text.replace('\'', "\\'")),
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Bool(true) if is_python => "True".into(),
        Value::Array(all) => {
            let all: Vec<String> = all.iter().map(inner).collect();
            format!("[{}]", all.join(comma))
        }
        Value::Object(all) => {
            let key = |key: &String| {
                if is_python {
                    format!("'{key}'")
                } else {
                    key.clone()
                }
            };
            let all = all
                .iter()
                .map(|(name, value)| key(name) + colon + &inner(value));
            format!("{{{}}}", all.collect::<Vec<_>>().join(comma))
        }
        other => other.to_string(),
    }
}
