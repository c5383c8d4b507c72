//! The names of languages by their codes (ISO 639), as transcripts name them.

/// Codes and names. Of a code that is not here, the name is the code.
const NAMES: &[(&str, &str)] = &[
    ("af", "afrikaans"),
    ("am", "amharic"),
    ("ar", "arabic"),
    ("as", "assamese"),
    ("az", "azerbaijani"),
    ("ba", "bashkir"),
    ("be", "belarusian"),
    ("bg", "bulgarian"),
    ("bn", "bengali"),
    ("bo", "tibetan"),
    ("br", "breton"),
    ("bs", "bosnian"),
    ("ca", "catalan"),
    ("cs", "czech"),
    ("cy", "welsh"),
    ("da", "danish"),
    ("de", "german"),
    ("el", "greek"),
    ("en", "english"),
    ("es", "spanish"),
    ("et", "estonian"),
    ("eu", "basque"),
    ("fa", "persian"),
    ("fi", "finnish"),
    ("fo", "faroese"),
    ("fr", "french"),
    ("gl", "galician"),
    ("gu", "gujarati"),
    ("ha", "hausa"),
    ("haw", "hawaiian"),
    ("he", "hebrew"),
    ("hi", "hindi"),
    ("hr", "croatian"),
    ("ht", "haitian creole"),
    ("hu", "hungarian"),
    ("hy", "armenian"),
    ("id", "indonesian"),
    ("is", "icelandic"),
    ("it", "italian"),
    ("ja", "japanese"),
    ("jv", "javanese"),
    ("jw", "javanese"),
    ("ka", "georgian"),
    ("kk", "kazakh"),
    ("km", "khmer"),
    ("kn", "kannada"),
    ("ko", "korean"),
    ("la", "latin"),
    ("lb", "luxembourgish"),
    ("ln", "lingala"),
    ("lo", "lao"),
    ("lt", "lithuanian"),
    ("lv", "latvian"),
    ("mg", "malagasy"),
    ("mi", "maori"),
    ("mk", "macedonian"),
    ("ml", "malayalam"),
    ("mn", "mongolian"),
    ("mr", "marathi"),
    ("ms", "malay"),
    ("mt", "maltese"),
    ("my", "myanmar"),
    ("ne", "nepali"),
    ("nl", "dutch"),
    ("nn", "nynorsk"),
    ("no", "norwegian"),
    ("oc", "occitan"),
    ("pa", "punjabi"),
    ("pl", "polish"),
    ("ps", "pashto"),
    ("pt", "portuguese"),
    ("ro", "romanian"),
    ("ru", "russian"),
    ("sa", "sanskrit"),
    ("sd", "sindhi"),
    ("si", "sinhala"),
    ("sk", "slovak"),
    ("sl", "slovenian"),
    ("sn", "shona"),
    ("so", "somali"),
    ("sq", "albanian"),
    ("sr", "serbian"),
    ("su", "sundanese"),
    ("sv", "swedish"),
    ("sw", "swahili"),
    ("ta", "tamil"),
    ("te", "telugu"),
    ("tg", "tajik"),
    ("th", "thai"),
    ("tk", "turkmen"),
    ("tl", "tagalog"),
    ("tr", "turkish"),
    ("tt", "tatar"),
    ("uk", "ukrainian"),
    ("ur", "urdu"),
    ("uz", "uzbek"),
    ("vi", "vietnamese"),
    ("yi", "yiddish"),
    ("yo", "yoruba"),
    ("yue", "cantonese"),
    ("zh", "chinese"),
];

/// The name of the language with a code.
pub(super) fn name_of(code: &str) -> &str {
    let found = NAMES.iter().find(|(own, _)| *own == code);
    found.map_or(code, |(_, name)| name)
}

/// The code of a language that a client names by its code, with a region or without, or by its name.
pub(super) fn code_of(language: &str) -> String {
    let lower = language.trim().to_ascii_lowercase();
    let code = lower.split(['-', '_']).next().unwrap_or_default();
    let found = NAMES.iter().find(|(_, name)| *name == lower);
    found.map_or_else(|| code.to_owned(), |(code, _)| (*code).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_known_by_codes_and_by_names() {
        for (given, code) in [
            ("en", "en"),
            ("English", "en"),
            ("pt-BR", "pt"),
            (" YUE ", "yue"),
            ("xx", "xx"),
        ] {
            assert_eq!(code_of(given), code);
        }
        assert_eq!((name_of("de"), name_of("xx")), ("german", "xx"));
        assert!(NAMES.is_sorted());
    }
}
