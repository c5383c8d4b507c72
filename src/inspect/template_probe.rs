//! Finds the features of a chat template by rendering small conversations.
//!
//! A template is a program, so its source says little. A probe checks whether a word of the conversation occurs in the
//! rendered text, and whether a setting changes the text. The source is not searched. Called by `inspect`. Probes have
//! the same limits as any other rendering.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use lab_base::chat::template::{ChatTemplate, Moment, RenderError, RenderInput};

/// Words that occur in no template.
const USER: &str = "qzuserwordqz";
const SYSTEM: &str = "qzsystemwordqz";
const ANSWER: &str = "qzanswerwordqz";
const THOUGHT: &str = "qzthoughtwordqz";
const TOOL: &str = "qztoolwordqz";
const ARGUMENT: &str = "qzargumentwordqz";
const RESULT: &str = "qzresultwordqz";

/// Settings by which callers control how much a model reasons. Their names are conventions of the interface
/// (`chat_template_kwargs`); the two values should have different effects.
const SWITCHES: [(&str, [&str; 2]); 4] = [
    ("enable_thinking", ["true", "false"]),
    ("thinking", ["true", "false"]),
    ("reasoning_effort", ["\"high\"", "\"low\""]),
    ("thinking_budget", ["64", "0"]),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The rendered text contains what was given.
    Yes,
    /// The rendered text is as if nothing had been given.
    Ignored,
    /// The template refuses, or rendering fails.
    Refused(RenderError),
}

impl ProbeResult {
    pub fn is_yes(&self) -> bool {
        *self == Self::Yes
    }
}

/// Serialises as true, false, or the reason for the refusal.
impl Serialize for ProbeResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Refused(error) => serializer.collect_str(error),
            known => serializer.serialize_bool(known.is_yes()),
        }
    }
}

/// The features of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TemplateProbe {
    /// Shows the user's message.
    pub user: ProbeResult,
    /// Shows a system message.
    pub system: ProbeResult,
    /// Shows a conversation of several turns: question, answer, question.
    pub turns: ProbeResult,
    /// Opens the assistant's turn when requested.
    pub opens_answer: bool,
    /// Shows content that is a list of parts.
    pub parts: ProbeResult,
    /// Shows the offered tools.
    pub tools: ProbeResult,
    /// Shows tool calls with their arguments.
    pub tool_calls: ProbeResult,
    /// Shows the results of tools.
    pub tool_results: ProbeResult,
    /// Shows the reasoning of an answer that is in progress.
    pub thoughts: ProbeResult,
    /// Settings that change the start of an answer.
    pub switches: Vec<&'static str>,
    /// Allows the last message to be continued.
    pub continues: bool,
}

impl TemplateProbe {
    /// Probes a template. `bos` and `eos` are the texts of those tokens.
    pub fn new(template: &ChatTemplate, bos: &str, eos: &str, now: Moment) -> Self {
        let (user, answer) = (message("user", USER), message("assistant", ANSWER));
        let system = message("system", SYSTEM);
        let parts = json!([{ "type": "text", "text": USER }]);
        let [question, turns, continued] = [
            json!([user]),
            json!([user, answer, user]),
            json!([user, answer]),
        ];
        let mut prober = ProbeRenderer {
            template,
            question: RenderInput {
                messages: &question,
                tools: None,
                documents: None,
                add_generation_prompt: false,
                continue_final_message: false,
                kwargs: &Map::new(),
                bos_token: bos,
                eos_token: eos,
                now,
            },
            limit: None,
        };
        let shows_user = prober.shows(&question, &[USER]);
        if let ProbeResult::Refused(limit @ RenderError::Limit(_)) = &shows_user {
            prober.limit = Some(limit.clone());
        }
        let open = RenderInput {
            add_generation_prompt: true,
            ..prober.question.clone()
        };
        let with_tools = RenderInput {
            tools: Some(&json!([tool()])),
            ..open.clone()
        };
        let continued = RenderInput {
            messages: &continued,
            continue_final_message: true,
            ..prober.question.clone()
        };
        let ends_with_answer = |text: String| text.ends_with(ANSWER);
        Self {
            user: shows_user,
            system: prober.shows(&json!([system, user]), &[SYSTEM, USER]),
            turns: prober.shows(&turns, &[USER, ANSWER]),
            opens_answer: differ(prober.render(&prober.question), prober.render(&open)),
            parts: prober.parts(&json!([message("user", parts)])),
            tools: probed(prober.render(&with_tools), &[TOOL, USER]),
            tool_calls: prober.shows(&calls(false), &[TOOL, ARGUMENT]),
            tool_results: prober.shows(&calls(true), &[RESULT]),
            thoughts: prober.thoughts(),
            switches: prober.switches(),
            continues: prober.render(&continued).is_ok_and(ends_with_answer),
        }
    }
}

/// Whether the rendered text contains the words.
fn probed(rendered: Result<String, RenderError>, words: &[&str]) -> ProbeResult {
    match rendered {
        Ok(text) if words.iter().all(|word| text.contains(word)) => ProbeResult::Yes,
        Ok(_) => ProbeResult::Ignored,
        Err(error) => ProbeResult::Refused(error),
    }
}

struct ProbeRenderer<'a> {
    template: &'a ChatTemplate,
    /// A single message of a user.
    question: RenderInput<'a>,
    /// The limit that the first rendering exceeded; if set, the template is not rendered again.
    limit: Option<RenderError>,
}

impl ProbeRenderer<'_> {
    fn render(&self, input: &RenderInput<'_>) -> Result<String, RenderError> {
        match &self.limit {
            Some(limit) => Err(limit.clone()),
            None => self.template.render(input),
        }
    }

    fn conversation(&self, messages: &Value) -> Result<String, RenderError> {
        self.render(&RenderInput {
            messages,
            ..self.question.clone()
        })
    }

    fn shows(&self, messages: &Value, words: &[&str]) -> ProbeResult {
        probed(self.conversation(messages), words)
    }

    /// A template that prints a list as such shows its words, but does not support parts.
    fn parts(&self, messages: &Value) -> ProbeResult {
        match self.conversation(messages) {
            Ok(text) if text.contains("'type'") || text.contains("\"type\"") => {
                ProbeResult::Ignored
            }
            rendered => probed(rendered, &[USER]),
        }
    }

    /// Probes reasoning in a finished answer, then in an answer that calls a tool: many templates drop that of finished
    /// answers.
    fn thoughts(&self) -> ProbeResult {
        let plain = json!([message("user", USER), message("assistant", ANSWER)]);
        let shows = |mut messages: Value| {
            messages[1]["reasoning_content"] = THOUGHT.into();
            messages[1]["thinking"] = THOUGHT.into();
            self.shows(&messages, &[THOUGHT])
        };
        match shows(plain) {
            ProbeResult::Yes => ProbeResult::Yes,
            _ => shows(calls(true)),
        }
    }

    fn switches(&self) -> Vec<&'static str> {
        let answer = |name: &str, value: &str| {
            let value = serde_json::from_str(value).unwrap_or_default();
            self.render(&RenderInput {
                kwargs: &Map::from_iter([(name.to_owned(), value)]),
                add_generation_prompt: true,
                ..self.question.clone()
            })
        };
        let mut switches = SWITCHES.to_vec();
        switches.retain(|(name, [one, other])| differ(answer(name, one), answer(name, other)));
        switches.into_iter().map(|(name, _)| name).collect()
    }
}

/// Whether both renderings succeed and differ.
fn differ(one: Result<String, RenderError>, other: Result<String, RenderError>) -> bool {
    matches!((one, other), (Ok(one), Ok(other)) if one != other)
}

fn message(role: &str, content: impl Into<Value>) -> Value {
    json!({ "role": role, "content": content.into() })
}

fn tool() -> Value {
    json!({
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Does nothing.",
            "parameters": {
                "type": "object",
                "properties": { "x": { "type": "string", "description": "Anything." } },
                "required": ["x"],
            },
        },
    })
}

/// A conversation with a tool call, and its result if `has_result`.
fn calls(has_result: bool) -> Value {
    let call = json!({
        "id": "abcdef123",
        "type": "function",
        "function": { "name": TOOL, "arguments": { "x": ARGUMENT } },
    });
    let mut messages = vec![message("user", USER), message("assistant", "")];
    messages[1]["tool_calls"] = json!([call]);
    if has_result {
        messages.push(json!({
            "role": "tool", "name": TOOL, "tool_call_id": "abcdef123", "content": RESULT,
        }));
    }
    messages.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(source: &str) -> TemplateProbe {
        let template = ChatTemplate::new(source).expect("compiles");
        TemplateProbe::new(&template, "<s>", "</s>", Moment::from_unix_seconds(0))
    }

    const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[answer]{% endif %}";

    #[test]
    fn shown_parts_of_a_conversation_are_found() {
        let found = probe(PLAIN);
        assert!(found.user.is_yes() && found.system.is_yes() && found.turns.is_yes());
        assert!(found.opens_answer && found.continues);
        assert_eq!(
            found.parts,
            ProbeResult::Ignored,
            "a printed list is not understood"
        );
        assert_eq!(found.tools, ProbeResult::Ignored);
        assert_eq!(found.tool_calls, ProbeResult::Ignored);
        assert_eq!(found.thoughts, ProbeResult::Ignored);
        assert!(found.tool_results.is_yes(), "any role is shown");
        assert!(found.switches.is_empty());
    }

    #[test]
    fn a_name_in_a_comment_is_not_a_feature() {
        let source = format!("{{# tools enable_thinking tool_calls #}}{PLAIN}");
        assert_eq!(probe(&source), probe(PLAIN));
    }

    #[test]
    fn refusals_keep_their_reason() {
        let source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}";
        let found = probe(&format!("{source}{PLAIN}")).system;
        let ProbeResult::Refused(error) = found else {
            panic!("{found:?}");
        };
        assert!(error.to_string().contains("no system here"), "{error}");
    }

    #[test]
    fn tools_and_reasoning_are_found_in_the_rendered_text() {
        let source = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}\
             {% for m in messages %}{{ m.content }}{{ m.reasoning_content }}\
             {% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}\
             {% endfor %}{% if add_generation_prompt %}[answer]{% if not enable_thinking %}!{% endif %}{% endif %}";
        let found = probe(source);
        assert!(found.tools.is_yes() && found.tool_calls.is_yes() && found.thoughts.is_yes());
        assert_eq!(found.switches, ["enable_thinking"]);
    }

    #[test]
    fn an_endless_template_is_refused_quickly() {
        let found =
            probe("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
        assert!(
            matches!(found.user, ProbeResult::Refused(RenderError::Limit(_))),
            "{found:?}"
        );
    }
}
