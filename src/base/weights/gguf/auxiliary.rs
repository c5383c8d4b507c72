//! GGUF files that are not models, but are used with one.

use crate::weights::{Metadata, TensorInfo};

/// The kind of a file that is used with a model and cannot be run by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuxiliaryKind {
    /// Low-rank updates of a model's weights.
    Lora,
    /// The part of a multimodal model that processes images or sound.
    Projector,
    /// The importance of the columns of a model's weights, for quantisation.
    ImportanceMatrix,
    /// Directions that are added to the hidden state between layers.
    ControlVector,
    /// A vocabulary without weights.
    Vocabulary,
    /// Another type that the file states.
    Other,
}

impl AuxiliaryKind {
    /// The kind that the metadata states; none for a model.
    pub fn of(metadata: &Metadata, tensors: &[TensorInfo]) -> Option<Self> {
        let arch = metadata.str("general.architecture");
        match metadata.str("general.type") {
            Some("adapter") => return Some(Self::Lora),
            Some("mmproj") => return Some(Self::Projector),
            Some("imatrix") => return Some(Self::ImportanceMatrix),
            Some("controlvector") => return Some(Self::ControlVector),
            Some("model") | None => {}
            Some("vocab") if tensors.is_empty() => return Some(Self::Vocabulary),
            Some("vocab") => {}
            Some(_) => return Some(Self::Other),
        }
        match arch {
            Some("clip") => Some(Self::Projector),
            Some("controlvector") => Some(Self::ControlVector),
            Some("imatrix") => Some(Self::ImportanceMatrix),
            _ if metadata.get("adapter.type").is_some() => Some(Self::Lora),
            // Older files have no type: names of directions identify them.
            _ if !tensors.is_empty()
                && tensors.iter().all(|t| t.name.starts_with("direction.")) =>
            {
                Some(Self::ControlVector)
            }
            _ => None,
        }
    }

    /// The name of the kind in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lora => "a LoRA adapter",
            Self::Projector => "a multimodal projector (mmproj)",
            Self::ImportanceMatrix => "an importance matrix (imatrix)",
            Self::ControlVector => "a control vector",
            Self::Vocabulary => "a vocabulary without weights",
            Self::Other => "a file of another type (`general.type`)",
        }
    }

    /// The way in which the file can be used.
    pub fn next_step(self) -> &'static str {
        match self {
            Self::Lora => "run it with its base model: `-m BASE.gguf --lora FILE`",
            Self::Projector => {
                "it reads pictures or sounds for a text model: `-m MODEL.gguf --mmproj FILE`"
            }
            Self::ImportanceMatrix => {
                "it guides quantisation and has nothing to run: name the model"
            }
            Self::ControlVector => "it steers a model, which runs without it: name that model",
            Self::Vocabulary => {
                "`bench tokenize -m FILE` works with it; running takes a file with weights"
            }
            Self::Other => "name a file that holds a model",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Value;

    fn of(keys: &[(&str, &str)]) -> Option<AuxiliaryKind> {
        let mut metadata = Metadata::default();
        for (key, value) in keys {
            metadata.insert(*key, Value::Str((*value).to_owned()));
        }
        AuxiliaryKind::of(&metadata, &[])
    }

    #[test]
    fn files_for_models_are_told_from_models() {
        for (ty, kind) in [
            ("adapter", Some(AuxiliaryKind::Lora)),
            ("mmproj", Some(AuxiliaryKind::Projector)),
            ("imatrix", Some(AuxiliaryKind::ImportanceMatrix)),
            ("controlvector", Some(AuxiliaryKind::ControlVector)),
            ("vocab", Some(AuxiliaryKind::Vocabulary)),
            ("model", None),
            ("dataset", Some(AuxiliaryKind::Other)),
        ] {
            let found = of(&[("general.type", ty), ("general.architecture", "x")]);
            assert_eq!(found, kind, "{ty}");
        }
        assert_eq!(
            of(&[("general.architecture", "clip")]),
            Some(AuxiliaryKind::Projector)
        );
        assert_eq!(
            of(&[("general.architecture", "controlvector")]),
            Some(AuxiliaryKind::ControlVector)
        );
        assert_eq!(of(&[("adapter.type", "lora")]), Some(AuxiliaryKind::Lora));
        assert_eq!(of(&[("general.architecture", "x")]), None);
    }
}
