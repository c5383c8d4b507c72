//! A chat template, rendered.
#![no_main]

use lab_base::chat::template::{ChatTemplate, Moment, RenderInput};
use serde_json::{Map, json};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(template) = ChatTemplate::new(text) else {
        return;
    };
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "2 + 2 = ?" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "1", "type": "function", "function": { "name": "f", "arguments": { "a": 1 } } },
        ] },
        { "role": "tool", "content": "4" },
        { "role": "assistant", "content": "4" },
    ]);
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }]);
    for is_continued in [false, true] {
        let _ = template.render(&RenderInput {
            messages: &messages,
            tools: Some(&tools),
            documents: None,
            add_generation_prompt: !is_continued,
            continue_final_message: is_continued,
            kwargs: &Map::new(),
            bos_token: "<s>",
            eos_token: "</s>",
            now: Moment::from_unix_seconds(0),
        });
    }
});
