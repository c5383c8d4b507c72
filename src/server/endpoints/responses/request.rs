//! Converts the fields of a responses request into those of chat completions.
//!
//! JsonMap that only this shape has are checked here, so that errors name the places that the client wrote; all others
//! are passed on unchanged.

use serde_json::{Map, Value, json};

use crate::endpoints::chat_request;
use crate::http::context::RequestContext;
use crate::http::error::{Error, quoted};
use crate::request::fields::{BodyFields, FieldDoc, fields};
use crate::request::generation::check_top_logprobs;
use crate::request::json_access::{JsonMap, given, malformed, object_at, text_at, unsupported};
use crate::request::object_fields::{ObjectFields, has_word};

use super::conversation::{self, ITEMS};
use super::tools::{self, ClientTools, OfferedTools, TOOLS};

fields! {
    struct ResponseFields prunes SHAPES {
        input: Value,
        instructions: Option<String>,
        tools: Option<Vec<Value>>,
        tool_choice: Option<Value>,
        max_output_tokens: Option<i64>,
        reasoning: Option<Map<String, Value>>,
        text: Option<Map<String, Value>>,
        include: Option<Vec<String>>,
        top_logprobs: Option<u32>,
        /// Whether the response is stored, so that later requests may read it, continue it and refer to its items.
        store: Option<bool>,
        metadata: Option<Map<String, Value>>,
        /// A conversation that is too long is refused.
        truncation: Option<String>,
        max_tool_calls: Option<u64>,
        /// The id of the response that this one continues: its input and output come before `input`.
        previous_response_id: Option<Value>,
        conversation: Option<Value>,
        prompt: Option<Value>,
        /// Whether the response is made without its client: `GET /v1/responses/{id}` returns it.
        background: Option<Value>,
    }
}

const SHAPES: &[(&str, &ObjectFields)] = &[
    ("input", &ITEMS),
    // What `state` puts in the place of the id.
    (
        "previous_response_id",
        &ObjectFields {
            inner: &[("items", &ITEMS)],
            ..ObjectFields::of("id items")
        },
    ),
    ("tools", &TOOLS),
    (
        "tool_choice",
        &ObjectFields {
            inner: &[("tools", &CHOSEN)],
            ..ObjectFields::of("type name namespace mode tools")
        },
    ),
    (
        "reasoning",
        &ObjectFields {
            idle: "summary generate_summary",
            ..ObjectFields::of("effort")
        },
    ),
    (
        "text",
        &ObjectFields {
            inner: &[("format", &FORMAT)],
            ..ObjectFields::of("format verbosity")
        },
    ),
];
const CHOSEN: ObjectFields = ObjectFields::of("type name namespace");
const FORMAT: ObjectFields = ObjectFields::of("type name description schema strict");

pub(crate) fn fields() -> Vec<FieldDoc> {
    let mut fields = chat_request::fields_with::<ResponseFields>();
    // The messages are made from `input`.
    fields.retain(|field| field.name != "messages");
    fields
}

pub(super) struct Rewritten {
    pub(super) body: BodyFields,
    /// The fields that the response repeats.
    pub(super) echo: JsonMap,
    /// The tools by the names under which the model calls them.
    pub(super) callees: ClientTools,
    /// The id of the response, if `state` has chosen it.
    pub(super) id: Option<String>,
    /// The length of the list of most probable tokens, if log-probabilities are requested.
    pub(super) top_logprobs: Option<usize>,
}

/// Values of `include` for items and parts that only OpenAI's own services produce.
const INCLUDES: &str = "reasoning.encrypted_content file_search_call.results web_search_call.results \
    web_search_call.action.sources message.input_image.image_url \
    computer_call_output.output.image_url code_interpreter_call.outputs";
const LOGPROBS: &str = "message.output_text.logprobs";

/// The chat completion request that corresponds to this request, in which `state` has resolved what is stored.
pub(super) fn rewritten(mut body: BodyFields) -> Result<Rewritten, Error> {
    let mut own: ResponseFields = body.take()?;
    own.check()?;
    let mut offered = OfferedTools::default();
    for (i, tool) in own.tools.iter().flatten().enumerate() {
        offered.add(&format!("tools[{i}]"), tool)?;
    }
    let instructions = own.instructions.as_deref();
    let earlier = own.previous_response_id.as_mut();
    let earlier = earlier.map_or(Value::Null, |previous| previous["items"].take());
    let earlier = earlier.as_array().map_or(&[][..], Vec::as_slice);
    let messages = conversation::messages(instructions, earlier, &own.input, &mut offered)?;
    let mut out = JsonMap::new();
    out.insert("messages".into(), messages.into());
    let tools = std::mem::take(&mut offered.functions);
    if !tools.is_empty() {
        out.insert("tools".into(), tools.into());
    }
    if let Some(choice) = &own.tool_choice {
        out.insert("tool_choice".into(), tools::choice(choice, &offered)?);
    }
    if let Some(most) = own.max_output_tokens {
        out.insert("max_completion_tokens".into(), most.into());
    }
    if let Some(effort) = own.reasoning.as_ref().and_then(|r| given(r, "effort")) {
        out.insert("reasoning_effort".into(), effort.clone());
    }
    if let Some(text) = &own.text {
        add_format(text, &mut out)?;
    }
    let top_logprobs = own.n_top_logprobs()?;
    let record = RequestContext::current();
    record.rename_whole("messages", "input");
    for (name, sent) in [
        ("max_completion_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("response_format", "text.format"),
        ("response_format.json_schema", "text.format"),
    ] {
        if out.contains_key(name.split('.').next().unwrap_or(name)) {
            record.rename(name, sent);
        }
    }
    let echo = own.echo(&body);
    Ok(Rewritten {
        body: body.with(out),
        echo,
        callees: offered.into_callees(),
        id: own.background.and_then(|id| id.as_str().map(str::to_owned)),
        top_logprobs,
    })
}

impl ResponseFields {
    fn check(&self) -> Result<(), Error> {
        let previous = self.previous_response_id.as_ref();
        for (name, is_given, why) in [
            (
                "previous_response_id",
                previous.is_some_and(|previous| !previous.is_object()),
                "no responses are stored here: send the conversation whole, in `input`",
            ),
            (
                "background",
                self.background == Some(Value::Bool(true)),
                "no responses are stored here",
            ),
            (
                "conversation",
                self.conversation.is_some(),
                "there are no stored conversations; `previous_response_id` continues a response",
            ),
            (
                "prompt",
                self.prompt.is_some(),
                "there are no stored prompts",
            ),
        ] {
            if is_given {
                return Err(unsupported(name, why));
            }
        }
        match self.truncation.as_deref() {
            None | Some("disabled" | "auto") => {}
            Some(_) => return Err(malformed("truncation", "`disabled` or `auto`")),
        }
        let record = RequestContext::current();
        for (name, is_set) in [
            ("truncation", self.truncation.as_deref() == Some("auto")),
            ("max_tool_calls", self.max_tool_calls.is_some()),
        ] {
            if is_set {
                record.ignore(name);
            }
        }
        for (i, name) in self.include.iter().flatten().enumerate() {
            if name != LOGPROBS && !has_word(INCLUDES, name) {
                let param = format!("include[{i}]");
                return Err(unsupported(
                    &param,
                    &format!("`{}` is not known", quoted(name)),
                ));
            }
        }
        Ok(())
    }

    fn n_top_logprobs(&self) -> Result<Option<usize>, Error> {
        let includes = self.include.iter().flatten().any(|name| name == LOGPROBS);
        if let Some(top) = self.top_logprobs {
            check_top_logprobs("top_logprobs", top)?;
        }
        let top = self.top_logprobs.filter(|top| includes || *top > 0);
        Ok(top.or(includes.then_some(0)).map(|top| top as usize))
    }

    /// The fields that the response repeats, with their defaults.
    fn echo(&self, body: &BodyFields) -> JsonMap {
        let number = |name: &str| body.get(name).cloned().unwrap_or_default();
        let of = |fields: &Option<JsonMap>, name: &str| {
            let value = fields.as_ref().and_then(|fields| fields.get(name));
            value.cloned().unwrap_or_default()
        };
        let format = match of(&self.text, "format") {
            Value::Null => json!({ "type": "text" }),
            format => format,
        };
        let previous = self.previous_response_id.as_ref();
        let echo = json!({
            "background": self.background.as_ref().is_some_and(Value::is_string),
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata.clone().unwrap_or_default(),
            "parallel_tool_calls": body.get("parallel_tool_calls") != Some(&Value::Bool(false)),
            "previous_response_id": previous.map(|previous| &previous["id"]),
            "reasoning": { "effort": of(&self.reasoning, "effort"), "summary": null },
            "store": self.store != Some(false),
            "temperature": number("temperature"),
            "text": { "format": format, "verbosity": of(&self.text, "verbosity") },
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": self.tools.clone().unwrap_or_default(),
            "top_logprobs": self.top_logprobs.unwrap_or(0),
            "top_p": number("top_p"),
            "truncation": "disabled",
        });
        match echo {
            Value::Object(fields) => fields,
            _ => JsonMap::new(),
        }
    }
}

fn add_format(text_fields: &JsonMap, out: &mut JsonMap) -> Result<(), Error> {
    const AT: &str = "text.format";
    if given(text_fields, "verbosity").is_some() {
        RequestContext::current().ignore("text.verbosity");
    }
    let Some(format) = given(text_fields, "format") else {
        return Ok(());
    };
    let fields = object_at(AT, format)?;
    let format = match text_at(AT, fields, "type")? {
        "json_schema" => {
            let mut schema = fields.clone();
            schema.remove("type");
            json!({ "type": "json_schema", "json_schema": schema })
        }
        kind @ ("text" | "json_object") => json!({ "type": kind }),
        _ => {
            let expected = "`text`, `json_object` or `json_schema`";
            return Err(malformed(&format!("{AT}.type"), expected));
        }
    };
    out.insert("response_format".into(), format);
    Ok(())
}
