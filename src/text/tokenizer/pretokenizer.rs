//! The pre-tokenizers by the names that `tokenizer.ggml.pre` uses.
//!
//! A table of data: how a text is cut into words, and what else the name implies. The patterns
//! are those of the models' published tokenizers as the reference implementation runs them,
//! which tells letters apart by case only in ASCII. Where a pattern names characters by code
//! point, white space is left out of its classes, because there it counts as white space only.

use super::words::Step::{self, Cut, CutSpaceRuns, CutSpaces, GroupNumbers};

/// How a vocabulary spells its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// In the byte-level alphabet.
    ByteLevel,
    /// As UTF-8 text.
    Plain,
}

/// How a byte-pair vocabulary wants its text prepared.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    /// The most usual one first.
    names: &'static [&'static str],
    /// How a text is cut into words.
    pub(super) steps: &'static [Step],
    /// A word that is a token is not taken apart.
    pub(super) ignore_merges: bool,
    /// A word of line feeds that is a token is not taken apart.
    pub(super) keeps_line_feeds: bool,
    /// How token texts are written.
    pub(super) spelling: Spelling,
    /// Spaces are written as U+2581.
    pub(super) escapes_spaces: bool,
    /// Every line begins with an escaped space.
    pub(super) prefixes_lines: bool,
    /// White space separates words and is dropped.
    pub(super) drops_white_space: bool,
    /// Whether a text begins with the BOS token where the file does not say.
    pub(super) adds_bos: bool,
    /// A text begins with the BOS token whatever the file says.
    pub(super) always_adds_bos: bool,
    /// The file may lack merges.
    pub(super) optional_merges: bool,
}

/// The name that stands for a missing `tokenizer.ggml.pre`.
pub(super) const DEFAULT: &str = "default";

/// The name of one that cuts at line feeds only, spells tokens as text and escapes spaces.
pub(super) const PLAIN: &str = "sarvam-moe";

/// All pre-tokenizers.
pub(super) fn rows() -> impl Iterator<Item = &'static PreTokenizer> {
    TABLE.iter()
}

/// The pre-tokenizer of that name.
pub(super) fn named(name: &str) -> Option<&'static PreTokenizer> {
    TABLE.iter().find(|row| row.names.contains(&name))
}

impl PreTokenizer {
    /// The name under which it is known best.
    pub(super) fn usual_name(&self) -> &'static str {
        self.names.first().copied().unwrap_or(DEFAULT)
    }
}

const fn row(names: &'static [&'static str], steps: &'static [Step]) -> PreTokenizer {
    PreTokenizer {
        names,
        steps,
        ignore_merges: false,
        keeps_line_feeds: false,
        spelling: Spelling::ByteLevel,
        escapes_spaces: false,
        prefixes_lines: false,
        drops_white_space: false,
        adds_bos: false,
        always_adds_bos: false,
        optional_merges: false,
    }
}

/// A row whose text is cut at line feeds only and whose spaces are escaped.
const fn plain_row(names: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer {
        spelling: Spelling::Plain,
        escapes_spaces: true,
        ..row(names, &[Cut(LINES)])
    }
}

/// English contractions in either case.
macro_rules! contractions {
    () => {
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}

/// What follows the words and numbers in most patterns: symbols, then line feeds.
macro_rules! symbols_and_lines {
    () => {
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    };
}

/// As `symbols_and_lines`, with slashes behind symbols.
macro_rules! symbols_slashes_and_lines {
    () => {
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    };
}

/// Words told apart by case: upper-case letters, then lower-case ones. `$l` is the class of
/// letters, `$end` what may follow a word.
macro_rules! cased_words {
    ($l:literal, $end:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[",
            $l,
            r"&&[^a-z]]*[",
            $l,
            r"&&[^A-Z]]+",
            $end,
            r"|[^\r\n\p{L}\p{N}]?[",
            $l,
            r"&&[^a-z]]+[",
            $l,
            r"&&[^A-Z]]*",
            $end,
        )
    };
}

/// Chinese, Japanese and Korean ideographs by code point.
macro_rules! ideographs {
    () => {
        concat!(
            r"\u{3400}-\u{4dbf}\u{4e00}-\u{9fff}\u{f900}-\u{faff}\u{20000}-\u{2a6df}",
            r"\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b820}-\u{2ceaf}\u{2ceb0}-\u{2ebef}",
            r"\u{2f800}-\u{2fa1f}",
        )
    };
}

const LINES: &str = r"[^\n]+|\n+";
const NUMBER: &str = r"\p{N}";
const THREE_DIGITS: &str = r"\p{N}{1,3}";
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";
const PHRASES: &str = r" ?[^(\s|.,!?\u{2026}\u{3002}\u{ff0c}\u{3001}\u{964}\u{6d4}\u{60c})]+";
const HAN_AND_KANA: &str = r"[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
const CASELESS: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    symbols_and_lines!()
);
const CASELESS_THREE_DIGITS: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    symbols_and_lines!()
);
const PUNCTUATED_WORDS: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
);
const PUNCTUATED_WORDS_SINGLE_LINES: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]"
);
const LATIN_GREEK_CYRILLIC: &str = concat!(
    r"\s?[",
    r"A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}",
    r"\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}",
    r"\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}",
    r"\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}",
    r"\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}",
    r"\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}",
    r"\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}",
    r"\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}",
    r"\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}",
    r"\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}",
    r"\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}",
    r"\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}",
    r"\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}",
    r"\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}",
    r"\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}",
    r"\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}",
    r"]+",
);

const TABLE: &[PreTokenizer] = &[
    row(
        &[DEFAULT],
        &[
            Cut(r"[\p{P}\$\+<=>\^~\|]+"),
            CutSpaces(WORDS),
            Cut(r"\p{N}+"),
            Cut("[0-9][0-9][0-9]"),
        ],
    ),
    row(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        &[CutSpaces(WORDS)],
    ),
    row(
        &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[Cut(NUMBER), CutSpaces(WORDS)],
    ),
    row(
        &["falcon"],
        &[
            Cut(r"[\p{P}\$\+<=>\^~\|`]+"),
            CutSpaces(WORDS),
            Cut("[0-9][0-9][0-9]"),
        ],
    ),
    PreTokenizer {
        ignore_merges: true,
        adds_bos: true,
        ..row(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &[CutSpaces(CASELESS_THREE_DIGITS)],
        )
    },
    row(
        &["dbrx", "smaug-bpe", "chatglm-bpe"],
        &[CutSpaces(CASELESS_THREE_DIGITS)],
    ),
    PreTokenizer {
        ignore_merges: true,
        ..row(&["glm4", "glm5"], &[CutSpaces(CASELESS_THREE_DIGITS)])
    },
    row(
        &["jais-2"],
        &[CutSpaceRuns(
            CASELESS_THREE_DIGITS,
            &[512, 256, 128, 64, 32, 16, 8, 4, 2, 1],
        )],
    ),
    row(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[CutSpaces(CASELESS)],
    ),
    row(
        &["qwen35"],
        &[CutSpaces(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        ))],
    ),
    row(&["laguna"], &[Cut(LINES), CutSpaces(CASELESS)]),
    row(
        &["ufakzeka"],
        &[CutSpaces(concat!(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
            symbols_and_lines!()
        ))],
    ),
    row(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[CutSpaces(concat!(
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
        ))],
    ),
    row(
        &["seed-coder"],
        &[CutSpaces(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
        ))],
    ),
    row(
        &["exaone-moe"],
        &[CutSpaces(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
        ))],
    ),
    PreTokenizer {
        ignore_merges: true,
        ..row(
            &["minicpm5"],
            &[
                Cut(THREE_DIGITS),
                CutSpaces(concat!(
                    contractions!(),
                    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+",
                    symbols_and_lines!()
                )),
            ],
        )
    },
    row(
        &["deepseek-llm"],
        &[
            Cut(r"[\r\n]"),
            Cut(LATIN_GREEK_CYRILLIC),
            Cut(r"\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3001}\u{3002}]+"),
            Cut(r"\s+$"),
            Cut(r"[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}&&[^\s]]+"),
            Cut(r"\p{N}+"),
        ],
    ),
    row(
        &["deepseek-coder"],
        &[
            Cut(r"[\r\n]"),
            Cut(r"\s?\p{L}+"),
            Cut(r"\s?\p{P}+"),
            Cut(r"[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}&&[^\s]]+"),
            Cut(NUMBER),
        ],
    ),
    row(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[
            Cut(THREE_DIGITS),
            Cut(HAN_AND_KANA),
            CutSpaces(PUNCTUATED_WORDS),
        ],
    ),
    row(
        &["spark2_5"],
        &[
            Cut(THREE_DIGITS),
            Cut(HAN_AND_KANA),
            CutSpaces(PUNCTUATED_WORDS_SINGLE_LINES),
            Cut(NUMBER),
        ],
    ),
    row(
        &["afmoe"],
        &[
            GroupNumbers,
            Cut(concat!(
                r"[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{8c48}-\u{faff}\u{3040}-\u{309f}",
                r"\u{30a0}-\u{30ff}\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e40}-\u{e7f}\u{e80}-",
                r"\u{eff}\u{1780}-\u{17ff}\u{1000}-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}",
                r"\u{ac00}-\u{d7af}\u{1100}-\u{11ff}]+",
            )),
            CutSpaces(PUNCTUATED_WORDS),
        ],
    ),
    PreTokenizer {
        ignore_merges: true,
        ..row(
            &["youtu"],
            &[
                Cut(concat!(
                    r"[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|[\u{ff01}\u{2026}\u{201c}\u{201d}",
                    r"\u{2018}\u{2019}\u{2014}\u{ff1a}\u{ff1b}\u{ff0c}\u{3001}-\u{303f}\u{fe30}-",
                    r"\u{fe4f}]+|[\u{3105}-\u{312f}]+|[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-",
                    r"\u{30ff}]+",
                )),
                CutSpaces(concat!(
                    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
                    contractions!(),
                    r"?|\p{N}",
                    symbols_slashes_and_lines!()
                )),
            ],
        )
    },
    row(
        &["tiny_aya", "cohere2moe"],
        &[
            GroupNumbers,
            CutSpaces(concat!(
                r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
                contractions!(),
                r"?|\p{N}{1,3}",
                symbols_slashes_and_lines!()
            )),
        ],
    ),
    PreTokenizer {
        ignore_merges: true,
        adds_bos: true,
        ..row(
            &["tekken"],
            &[CutSpaces(concat!(
                cased_words!(r"\p{L}", ""),
                r"|\p{N}",
                symbols_slashes_and_lines!()
            ))],
        )
    },
    row(
        &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        &[CutSpaces(concat!(
            cased_words!(r"\p{L}", concat!(contractions!(), "?")),
            r"|\p{N}{1,3}",
            symbols_slashes_and_lines!()
        ))],
    ),
    PreTokenizer {
        ignore_merges: true,
        ..row(
            &["granite-embed-multi-97m"],
            &[CutSpaces(concat!(
                cased_words!(r"\p{L}\p{M}", concat!(contractions!(), "?")),
                r"|\p{N}{1,3}",
                symbols_slashes_and_lines!()
            ))],
        )
    },
    PreTokenizer {
        optional_merges: true,
        ..row(
            &["kimi-k2"],
            &[CutSpaces(concat!(
                "[",
                ideographs!(),
                "]+",
                r"|[^\r\n\p{L}\p{N}]?[\p{L}&&[^",
                ideographs!(),
                "]]+",
                contractions!(),
                r"?|\p{N}{1,3}",
                symbols_and_lines!()
            ))],
        )
    },
    PreTokenizer {
        adds_bos: true,
        ..row(
            &["chameleon"],
            &[
                Cut("<sentinel:[0-9]+>"),
                Cut("IMGIMG[A-I]{1,4}Z"),
                Cut(r"[\t\n]|    |  "),
                Cut(NUMBER),
                Cut(r"[\p{P}!-/:-@\[-`{-~]"),
                CutSpaces(WORDS),
            ],
        )
    },
    row(&["bloom", "poro-chat", "gpt3-finnish"], &[Cut(PHRASES)]),
    row(&["viking"], &[Cut(PHRASES), Cut(NUMBER)]),
    PreTokenizer {
        keeps_line_feeds: true,
        always_adds_bos: true,
        ..plain_row(&["gemma4", "granite-embed-multi-311m"])
    },
    plain_row(&["sarvam-moe"]),
    PreTokenizer {
        keeps_line_feeds: true,
        prefixes_lines: true,
        spelling: Spelling::Plain,
        escapes_spaces: true,
        ..row(&["mmbert"], &[Cut(LINES), Cut(r"\u{2581}[^\u{2581}]*")])
    },
    PreTokenizer {
        drops_white_space: true,
        spelling: Spelling::Plain,
        ..row(&["whitespace"], &[Cut(r"\S+")])
    },
    row(&["superbpe"], &[Cut(r"\p{N}+"), GroupNumbers]),
];

#[cfg(test)]
mod tests {
    use super::super::words::Splitter;
    use super::*;

    #[test]
    fn every_pattern_compiles_and_matches_something() {
        for row in TABLE {
            let splitter = Splitter::new(row.steps);
            let splitter = splitter.unwrap_or_else(|e| panic!("{:?}: {e}", row.names));
            assert!(!splitter.matches_nothing(), "{:?}", row.names);
        }
    }

    #[test]
    fn every_name_occurs_once() {
        let mut names: Vec<_> = TABLE.iter().flat_map(|row| row.names).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
