//! Converts the fields of Ollama's requests into those of chat completions.
//!
//! What only this shape has is checked here, so that errors name the places that the client wrote; all else is passed
//! on unchanged.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::endpoints::chat_request::{self, ChatRequest};
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, refuse};
use crate::request::fields::{BodyFields, FieldDoc, fields, integral};
use crate::request::generation::check_top_logprobs;
use crate::request::json_access::{JsonMap, given, malformed, unsupported};
use crate::request::media::image_part;
use crate::request::object_fields::{ObjectFields, ignore_unknown};
use crate::request::parts::ContentParts;
use crate::served::DEFAULT_MODEL;

use super::keep_alive;

fields! {
    /// What chats and prompts share.
    pub(super) struct CommonFields prunes OPTIONS {
        /// `json`, or a JSON Schema that the answer follows.
        format: Option<Value>,
        /// Whether the model reasons, or how much: `low`, `medium`, `high`.
        think: Option<Value>,
        /// Parameters of sampling and length: `temperature`, `num_predict` and so on.
        options: Option<Map<String, Value>>,
        /// Time without use after which the model is unloaded, in seconds or as `5m`; 0 = after this request, below 0 =
        /// never.
        keep_alive: Option<Value>,
        /// Default: true.
        stream: Option<bool>,
        logprobs: Option<bool>,
        top_logprobs: Option<u32>,
    }
}

fields! {
    struct ChatFields {
        /// Without messages the model is only loaded.
        messages: Option<Vec<Value>>,
        ..common: CommonFields,
    }
}

fields! {
    struct GenerateFields {
        /// Without a prompt the model is only loaded.
        prompt: Option<String>,
        /// The text after the gap that the completion fills.
        suffix: Option<String>,
        system: Option<String>,
        /// Refused, unless it is the prompt alone.
        template: Option<String>,
        /// Whether the prompt is read without a chat template.
        raw: Option<bool>,
        /// Refused: conversations are sent as messages.
        context: Option<Vec<u32>>,
        /// Pictures in base64, before the prompt.
        images: Option<Vec<Value>>,
        ..common: CommonFields,
    }
}

/// The options of a request for a completion. Those of sampling have the same names in chat completions.
const OPTION_FIELDS: ObjectFields = ObjectFields {
    idle: IDLE,
    ..ObjectFields::of(
        "num_predict seed stop temperature top_k top_p min_p typical_p repeat_penalty repeat_last_n \
         presence_penalty frequency_penalty mirostat mirostat_tau mirostat_eta",
    )
};
/// How a model runs is set by the options of the server.
const IDLE: &str = "num_ctx num_keep num_batch num_gpu main_gpu num_thread low_vram use_mmap use_mlock \
    vocab_only f16_kv logits_all embedding_only numa tfs_z penalize_newline";
const OPTIONS: &[(&str, &ObjectFields)] = &[("options", &OPTION_FIELDS)];

pub(crate) fn chat_fields() -> Vec<FieldDoc> {
    chat_request::fields_with::<ChatFields>()
}

pub(crate) fn generate_fields() -> Vec<FieldDoc> {
    let fields = chat_request::fields_with::<GenerateFields>();
    let own = |field: &FieldDoc| field.name != "messages";
    fields.into_iter().filter(own).collect()
}

/// What a model is asked to continue.
#[derive(Debug, PartialEq)]
pub(super) enum Prompt {
    /// Nothing: the model is loaded or unloaded.
    Empty,
    Messages,
    /// A text, which is a message where the model has a chat template.
    Text {
        text: String,
        has_system: bool,
        has_images: bool,
    },
    /// A text without a template.
    Raw(String),
    /// The texts before and after a gap.
    Gap(String, String),
}

/// A checked request.
#[derive(Debug)]
pub(super) struct Asked {
    /// The model as the client names it.
    pub(super) model: String,
    pub(super) keep_alive: Option<Duration>,
    /// The length of the list of most probable tokens, if log-probabilities are requested.
    pub(super) top_logprobs: Option<usize>,
    pub(super) prompt: Prompt,
    /// The parameters, and the conversation if there is one.
    pub(super) dialogue: ChatRequest,
}

pub(super) fn chat(mut body: BodyFields) -> Result<Asked, Error> {
    let own: ChatFields = body.take()?;
    let sent = own.messages.unwrap_or_default();
    let prompt = match sent.is_empty() {
        true => Prompt::Empty,
        false => Prompt::Messages,
    };
    let messages = messages(sent)?;
    let mut out = JsonMap::new();
    // A final message of the assistant is the start of the answer.
    let is_begun = messages.last().is_some_and(|last| {
        last["role"] == "assistant"
            && !is_empty(&last["content"])
            && last.get("tool_calls").is_none()
    });
    let says = |name: &str| body.has(name);
    if is_begun && !says("continue_final_message") && !says("add_generation_prompt") {
        out.insert("continue_final_message".into(), true.into());
    }
    out.insert("messages".into(), messages.into());
    own.common.asked(body, prompt, out)
}

pub(super) fn generate(mut body: BodyFields) -> Result<Asked, Error> {
    let own: GenerateFields = body.take()?;
    if own.context.is_some_and(|context| !context.is_empty()) {
        let what = "conversations are not kept as tokens; send messages to `/api/chat`";
        return Err(unsupported("context", what));
    }
    let template = own.template.unwrap_or_default();
    let template: String = template.split_whitespace().collect();
    if !["", "{{.Prompt}}"].contains(&template.as_str()) {
        let what = "the template is the model's own; write the whole prompt and set `raw`";
        return Err(unsupported("template", what));
    }
    let system = own.system.filter(|system| !system.is_empty());
    let is_raw = own.raw == Some(true);
    if is_raw && system.is_some() {
        return refuse("system", " is not possible where `raw` is true");
    }
    let text = own.prompt.unwrap_or_default();
    let images = own.images.unwrap_or_default();
    let has_images = !images.is_empty();
    let suffix = own.suffix.filter(|suffix| !suffix.is_empty());
    let mut messages = Vec::new();
    messages.extend(
        system
            .as_ref()
            .map(|text| json!({ "role": "system", "content": text })),
    );
    if has_images && (suffix.is_some() || is_raw || !template.is_empty()) {
        let message = " need the model's own template: not with `raw`, `template` or `suffix`";
        return refuse("images", message);
    }
    let content = with_images("images", images, &text)?.into_content(messages.len());
    messages.push(json!({ "role": "user", "content": content }));
    let prompt = match suffix {
        Some(suffix) => Prompt::Gap(text, suffix),
        None if text.is_empty() && !has_images => Prompt::Empty,
        None if is_raw || !template.is_empty() => Prompt::Raw(text),
        None => Prompt::Text {
            text,
            has_system: system.is_some(),
            has_images,
        },
    };
    if body.take_one("messages").is_some() {
        ignore_unknown("messages".into(), Some("prompt".into()))?;
    }
    RequestContext::current().rename_whole("messages", "prompt");
    let mut out = JsonMap::new();
    out.insert("messages".into(), messages.into());
    own.common.asked(body, prompt, out)
}

impl CommonFields {
    /// The request of these fields, of those in `out` and of the rest of the body.
    fn asked(self, body: BodyFields, prompt: Prompt, mut out: JsonMap) -> Result<Asked, Error> {
        if let Some(top) = self.top_logprobs {
            check_top_logprobs("top_logprobs", top)?;
        }
        let has_logprobs = self.logprobs == Some(true);
        add_options(self.options.unwrap_or_default(), &mut out)?;
        add_format(self.format, &mut out)?;
        add_thinking(self.think.as_ref(), &mut out)?;
        out.insert("stream".into(), (self.stream != Some(false)).into());
        if prompt == Prompt::Empty {
            // Nothing is read; the other fields are checked all the same.
            let nothing = json!([{ "role": "user", "content": "" }]);
            out.insert("messages".into(), nothing);
        }
        let keep_alive = self
            .keep_alive
            .as_ref()
            .map(keep_alive::parse)
            .transpose()?;
        let model = body.get("model").and_then(Value::as_str);
        let model = model.unwrap_or(DEFAULT_MODEL).to_owned();
        let dialogue: ChatRequest = body.with(out).whole()?;
        dialogue.check()?;
        dialogue.check_single("response")?;
        Ok(Asked {
            model,
            keep_alive,
            top_logprobs: has_logprobs.then(|| self.top_logprobs.unwrap_or(0) as usize),
            prompt,
            dialogue,
        })
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value == ""
}

/// Pictures in base64, and the text after them.
fn with_images(at: &str, images: Vec<Value>, text: &str) -> Result<ContentParts, Error> {
    let mut content = ContentParts::default();
    for (k, image) in images.into_iter().enumerate() {
        let at = format!("{at}[{k}]");
        let data = image
            .as_str()
            .ok_or_else(|| malformed(&at, "a text in base64"))?;
        let part = match data.starts_with("data:") {
            true => image_part(data),
            false => image_part(&format!("data:;base64,{data}")),
        };
        content.push_medium(part, at);
    }
    content.push_text(text);
    Ok(content)
}

/// The messages in the shape of chat completions, each in its place.
fn messages(sent: Vec<Value>) -> Result<Vec<Value>, Error> {
    // The calls without a result, as id and name.
    let mut open: Vec<(String, String)> = Vec::new();
    let mut all = Vec::with_capacity(sent.len());
    for (i, mut message) in sent.into_iter().enumerate() {
        // What has another type is refused where messages are checked.
        if let Some(fields) = message.as_object_mut() {
            let at = format!("messages[{i}]");
            match fields.remove("images") {
                None | Some(Value::Null) => {}
                Some(Value::Array(images)) if images.is_empty() => {}
                Some(Value::Array(images)) => {
                    let text = match fields.get("content") {
                        None | Some(Value::Null) => "",
                        Some(Value::String(text)) => text,
                        Some(_) => return Err(malformed(&format!("{at}.content"), "a string")),
                    };
                    let content = with_images(&format!("{at}.images"), images, text)?;
                    fields.insert("content".into(), content.into_content(i));
                }
                Some(_) => {
                    let expected = "an array of texts in base64";
                    return Err(malformed(&format!("{at}.images"), expected));
                }
            }
            if let Some(thinking) = fields.remove("thinking") {
                let place = format!("{at}.reasoning_content");
                RequestContext::current().rename(place, format!("{at}.thinking"));
                fields.insert("reasoning_content".into(), thinking);
            }
            if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
                open = add_ids(i, calls);
            }
            if fields.get("role").is_some_and(|role| role == "tool") {
                name_result(fields, &mut open);
            }
        }
        all.push(message);
    }
    Ok(all)
}

/// Gives an id to each call of message `i` that has none. Returns ids and names.
fn add_ids(i: usize, calls: &mut [Value]) -> Vec<(String, String)> {
    let mut named = Vec::new();
    for (k, call) in calls.iter_mut().enumerate() {
        let Some(call) = call.as_object_mut() else {
            continue;
        };
        let own = call.entry("id").or_insert(Value::Null);
        if is_empty(own) {
            *own = format!("call_{i}_{k}").into();
        }
        let id = own.as_str().unwrap_or_default().to_owned();
        if let Some(Value::Object(function)) = call.get_mut("function") {
            // The place of the call, which it has by its order.
            function.remove("index");
            let name = function.get("name").and_then(Value::as_str);
            named.push((id, name.unwrap_or_default().to_owned()));
        }
    }
    named
}

/// Writes which call a result answers: the first open one of the tool that it names, or the first open one.
fn name_result(fields: &mut JsonMap, open: &mut Vec<(String, String)>) {
    let tool = fields.remove("tool_name").filter(|name| !is_empty(name));
    if let Some(tool) = &tool {
        fields.insert("name".into(), tool.clone());
    }
    let sent = given(fields, "tool_call_id").and_then(Value::as_str);
    let name = given(fields, "name").and_then(Value::as_str);
    let found = match sent {
        Some(sent) => open.iter().position(|(id, _)| id == sent),
        None => {
            let of_name = open.iter().position(|(_, own)| Some(own.as_str()) == name);
            of_name.or((!open.is_empty()).then_some(0))
        }
    };
    if let Some(k) = found {
        let (id, _) = open.remove(k);
        fields.insert("tool_call_id".into(), id.into());
    }
}

fn add_options(options: JsonMap, out: &mut JsonMap) -> Result<(), Error> {
    let record = RequestContext::current();
    for (name, value) in options {
        let value = match value {
            Value::Null => continue,
            value => integral(value),
        };
        let at = format!("options.{name}");
        let (own, value) = match name.as_str() {
            "num_predict" => {
                let n = value.as_i64();
                let n =
                    n.ok_or_else(|| malformed(&at, "a whole number; below 1 = as many as fit"))?;
                ("max_tokens", if n < 1 { -1 } else { n }.into())
            }
            // Below 0 it is random, as without one.
            "seed" if value.as_i64().is_some_and(|seed| seed < 0) => continue,
            name => (name, value),
        };
        record.rename(own, at);
        out.insert(own.to_owned(), value);
    }
    Ok(())
}

fn add_format(format: Option<Value>, out: &mut JsonMap) -> Result<(), Error> {
    let format = match format {
        None => return Ok(()),
        Some(Value::String(text)) if text.is_empty() => return Ok(()),
        Some(Value::String(text)) if text == "json" => json!({ "type": "json_object" }),
        Some(schema @ Value::Object(_)) => {
            let schema = json!({ "name": "format", "schema": schema, "strict": true });
            json!({ "type": "json_schema", "json_schema": schema })
        }
        Some(_) => return Err(malformed("format", "`json` or a JSON Schema")),
    };
    out.insert("response_format".into(), format);
    let record = RequestContext::current();
    for place in ["", ".json_schema", ".json_schema.schema"] {
        record.rename(format!("response_format{place}"), "format");
    }
    Ok(())
}

fn add_thinking(think: Option<&Value>, out: &mut JsonMap) -> Result<(), Error> {
    let effort = match think {
        None => return Ok(()),
        Some(Value::Bool(true)) => None,
        Some(Value::Bool(false)) => {
            out.insert("reasoning_effort".into(), "none".into());
            out.insert("include_reasoning".into(), false.into());
            return Ok(());
        }
        Some(Value::String(effort)) => Some(effort.as_str()),
        Some(_) => return Err(malformed("think", "true, false, `low`, `medium` or `high`")),
    };
    if let Some(effort) = effort {
        if !["low", "medium", "high", "max"].contains(&effort) {
            let message = "`think` is none of true, false, `low`, `medium`, `high`, `max`";
            return invalid("think", message);
        }
        out.insert("reasoning_effort".into(), effort.into());
    }
    let switches = json!({ "enable_thinking": true, "thinking": true });
    out.insert("chat_template_kwargs".into(), switches);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: Value, of: fn(BodyFields) -> Result<Asked, Error>) -> Result<Asked, String> {
        let Value::Object(fields) = body else {
            unreachable!("it is an object")
        };
        let record = RequestContext::detached();
        record.enter(|| of(BodyFields::new(fields)).map_err(|error| error.message()))
    }

    #[test]
    fn results_of_tools_find_their_calls() {
        let call =
            |name: &str| json!({ "function": { "index": 0, "name": name, "arguments": {} } });
        let sent = vec![
            json!({ "role": "user", "content": "?" }),
            json!({ "role": "assistant", "tool_calls": [call("a"), call("b"), call("a")] }),
            json!({ "role": "tool", "tool_name": "b", "content": "1" }),
            json!({ "role": "tool", "tool_name": "a", "content": "2" }),
            json!({ "role": "tool", "content": "3" }),
            json!({ "role": "tool", "content": "4" }),
        ];
        let all = RequestContext::detached()
            .enter(|| messages(sent))
            .expect("good");
        let id = |i: usize| all[i]["tool_call_id"].clone();
        assert_eq!([id(2), id(3), id(4)], ["call_1_1", "call_1_0", "call_1_2"]);
        assert_eq!(id(5), Value::Null);
        assert_eq!(all[2]["name"], "b");
        assert_eq!(all[1]["tool_calls"][0]["function"].get("index"), None);
    }

    #[test]
    fn faults_name_the_fields_that_were_sent() {
        let message = json!([{ "role": "user", "content": "1" }]);
        let chats = [
            (
                json!({ "options": { "temperature": -1 } }),
                "`options.temperature`",
            ),
            (
                json!({ "options": { "num_predict": "x" } }),
                "`options.num_predict`",
            ),
            (json!({ "options": { "stop": 5 } }), "`options.stop`"),
            (json!({ "format": "yaml" }), "`format`"),
            (json!({ "think": "a bit" }), "`think`"),
            (json!({ "keep_alive": "x" }), "`keep_alive`"),
            (json!({ "top_logprobs": 21 }), "`top_logprobs`"),
            (json!({ "n": 2 }), "`n`"),
            (
                json!({ "messages": [{ "role": "user", "images": "aGk=" }] }),
                "`messages[0].images`",
            ),
            (
                json!({ "messages": [{ "role": "user", "images": ["aGk=", 1] }] }),
                "`messages[0].images[1]`",
            ),
            (
                json!({ "messages": [{ "role": "user", "content": [], "images": ["aGk="] }] }),
                "`messages[0].content`",
            ),
            (
                json!({ "messages": [{ "role": "user", "thinking": 1 }] }),
                "`messages[0].thinking`",
            ),
        ];
        for (extra, expected) in chats {
            let mut body = json!({ "messages": message });
            for (name, value) in extra.as_object().expect("an object") {
                body[name] = value.clone();
            }
            let fault = asked(body, chat).expect_err(expected);
            assert!(fault.contains(expected), "{fault}");
        }
        for (body, expected) in [
            (json!({ "prompt": "1", "context": [1] }), "`context`"),
            (
                json!({ "prompt": "1", "template": "{{ .System }}" }),
                "`template`",
            ),
            (
                json!({ "prompt": "1", "raw": true, "system": "x" }),
                "`system`",
            ),
            (
                json!({ "prompt": "1", "images": ["aGk="], "raw": true }),
                "`images`",
            ),
            (json!({ "prompt": "1", "images": [1] }), "`images[0]`"),
        ] {
            let fault = asked(body, generate).expect_err(expected);
            assert!(fault.contains(expected), "{fault}");
        }
    }

    #[test]
    fn a_prompt_is_a_message_a_text_a_gap_or_nothing() {
        let of = |body: Value| asked(body, generate).expect("good").prompt;
        let text = |text: &str, has_system| Prompt::Text {
            text: text.into(),
            has_system,
            has_images: false,
        };
        let seen = Prompt::Text {
            text: String::new(),
            has_system: false,
            has_images: true,
        };
        assert_eq!(of(json!({ "images": ["aGk="] })), seen);
        assert_eq!(of(json!({ "prompt": "1" })), text("1", false));
        assert_eq!(of(json!({ "prompt": "1", "system": "2" })), text("1", true));
        assert_eq!(
            of(json!({ "prompt": "1", "raw": true })),
            Prompt::Raw("1".into())
        );
        assert_eq!(
            of(json!({ "prompt": "1", "template": "{{ .Prompt }}" })),
            Prompt::Raw("1".into())
        );
        assert_eq!(
            of(json!({ "prompt": "1", "suffix": "2" })),
            Prompt::Gap("1".into(), "2".into())
        );
        assert_eq!(of(json!({})), Prompt::Empty);
        assert_eq!(asked(json!({}), chat).expect("good").prompt, Prompt::Empty);
        let is_streamed = |body: Value| {
            asked(body, chat)
                .expect("good")
                .dialogue
                .generation
                .is_streamed()
        };
        assert!(is_streamed(json!({})) && !is_streamed(json!({ "stream": false })));
    }
}
