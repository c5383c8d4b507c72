//! The choice among a model's chat templates.
//!
//! A model may have one unnamed template, and named ones: `tokenizer.chat_template.NAME`, listed in
//! `tokenizer.chat_templates`. As in transformers, `tool_use` is for requests that offer tools.

use crate::weights::Metadata;

/// Key of the unnamed template; the key of a named one has a dot and its name appended.
const KEY: &str = "tokenizer.chat_template";
/// Name of the template for requests with tools.
const TOOL_USE: &str = "tool_use";
/// The name by which the unnamed template is requested.
const DEFAULT: &str = "default";

/// The error of a request for a template that the model does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no chat template is named `{name}`; there {}", known(.names))]
pub struct UnknownTemplate {
    pub name: String,
    pub names: Vec<String>,
}

fn known(names: &[String]) -> String {
    match names {
        [] => "is none".to_owned(),
        names => format!("are `{}`", names.join("`, `")),
    }
}

/// The names of a model's templates; `default` is the unnamed one.
pub fn template_names(metadata: &Metadata) -> Vec<String> {
    let own = metadata.str(KEY).map(|_| DEFAULT.to_owned());
    let prefix = format!("{KEY}.");
    let named = metadata.iter().filter_map(|(key, value)| {
        let name = key.strip_prefix(&prefix)?;
        value.as_str().map(|_| name.to_owned())
    });
    own.into_iter().chain(named).collect()
}

/// The text of the template to use: the requested one; else `tool_use` if tools are offered and it exists; else the
/// unnamed one; else the only one. `None` for a model without templates.
pub fn choose_template<'m>(
    metadata: &'m Metadata,
    name: Option<&str>,
    has_tools: bool,
) -> Result<Option<&'m str>, UnknownTemplate> {
    let of_name = |name: &str| match name {
        DEFAULT => metadata.str(KEY),
        name => metadata.str(&format!("{KEY}.{name}")),
    };
    if let Some(name) = name {
        return of_name(name).map(Some).ok_or_else(|| UnknownTemplate {
            name: name.to_owned(),
            names: template_names(metadata),
        });
    }
    if let Some(template) = of_name(TOOL_USE).filter(|_| has_tools) {
        return Ok(Some(template));
    }
    let only = || match template_names(metadata).as_slice() {
        [only] => of_name(only),
        _ => None,
    };
    Ok(of_name(DEFAULT).or_else(only))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Value;

    fn metadata(keys: &[&str]) -> Metadata {
        let mut metadata = Metadata::default();
        for key in keys {
            metadata.insert(
                format!("{KEY}{key}"),
                Value::Str(format!("text of `{key}`")),
            );
        }
        metadata
    }

    #[test]
    fn the_template_for_tools_is_used_with_tools() {
        let several = metadata(&["", ".tool_use", ".rag"]);
        for (name, has_tools, expected) in [
            (None, false, "text of ``"),
            (None, true, "text of `.tool_use`"),
            (Some("rag"), true, "text of `.rag`"),
            (Some("default"), true, "text of ``"),
        ] {
            assert_eq!(
                choose_template(&several, name, has_tools),
                Ok(Some(expected))
            );
        }
        let error = choose_template(&several, Some("rga"), false).expect_err("there is none");
        assert_eq!(
            error.to_string(),
            "no chat template is named `rga`; there are `default`, `tool_use`, `rag`"
        );
    }

    #[test]
    fn one_template_serves_all() {
        for (keys, has_tools, expected) in [
            (&[""][..], true, Some("text of ``")),
            (&[".rag"], true, Some("text of `.rag`")),
            (&[".tool_use"], false, Some("text of `.tool_use`")),
            (&[".rag", ".other"], false, None),
            (&[], true, None),
        ] {
            assert_eq!(
                choose_template(&metadata(keys), None, has_tools),
                Ok(expected)
            );
        }
    }
}
