//! Compares a description of a vocabulary with its folder on texts.
//!
//! There are two kinds of texts: plain ones, which a file must tokenize like the folder, and hard ones, for which the
//! keys of a file cannot describe some folders (case and marks beyond ASCII, white space next to special tokens). A
//! difference in hard ones is reported.

use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
};

use super::super::library_encoder::{guarded, ids};
use super::super::pretokenizer::{self, PreTokenizer as Row, VocabularySpelling};
use super::super::splitter::Splitter;
use super::super::vocab::TokenKind;
use super::super::{Tokenizer, byte_level};
use super::library_folder::LibraryFolder;
use super::tokenizer_json::TokenizerJson;
use super::tokens::FolderToken;

/// Texts that distinguish pre-tokenizers; the first tell most apart.
const PLAIN: &[&str] = &[
    "1 12 123 1234 12345 123456 1234567 12345678901234567890",
    "I'LL WE'RE THEY'VE DON'T CAN'T IT'S I'M HE'D It'S we'Re",
    "camelCase PascalCase HTTPServer XMLHttpRequest iPhone getURL2 ABCdef aBCdEF McDonald",
    "Hello world, how are you doing today?",
    "I'll we're they've don't can't it's I'm he'd you'd 'twas rock'n'roll 's 't 'x",
    "a'b 'a '' ''s x's' 'sing 'there 'reality",
    "3.14159 1,000,000 2024-01-31 12:34:56 1e10 0x7f v1.2.3 a1b22c333d4444 5th 100%",
    "a  b   c    d     e      f",
    "line\nline\n\nline\n\n\nline\r\nline\r\n\r\n",
    "a \n b  \n  c   \n\n   d\n ",
    "\n",
    "x=y+1; a+=b*c/d-e%f; if(a<b&&c>=d||!e){return;}",
    "fn main() {\n    let x = vec![1, 2, 3];\n\tshow!(\"{}\", x[0]); // note\n}\n",
    "// a/b /c/ http://example.org/a_b-c?d=e&f=g#h user@example.org C:\\dir\\file.txt",
    "!!! ??? ... --- *** ### $$$ %%% ^^^ &&& ((( ))) [[[ ]]] {{{ }}} <<< >>> ~~~ ```",
    "wow!! (yes) \"quoted\" 'single' [x] {y} <z> a_b _c_ $5 \u{a3}5 #tag @you *bold* `code`",
    "!word .word -word _word $word ;word ?Word /word\n/\n!\n\n?\n//\n",
    "ab  Cd\nEF gh. IJ",
    "caf\u{e9} na\u{ef}ve \u{fc}ber fa\u{e7}ade se\u{f1}or stra\u{df}e \u{f8}re",
    "\u{43f}\u{440}\u{438}\u{432}\u{435}\u{442} \u{43c}\u{438}\u{440} \u{3b3}\u{3b5}\u{3b9}\u{3ac}",
    "\u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}\u{3002}\u{4eca}\u{5929}2024\u{5e74}1\u{6708}!",
    "\u{65e5}\u{672c}\u{8a9e}\u{306e}\u{30c6}\u{30ad}\u{30b9}\u{30c8} \u{3072}\u{3089}\u{304c}\u{306a}",
    "\u{627}\u{644}\u{639}\u{631}\u{628}\u{64a}\u{629} \u{5e9}\u{5dc}\u{5d5}\u{5dd} \u{661}\u{662}\u{663}\u{664}",
    "\u{1f600}\u{1f680} \u{1f44d} ok \u{1f600}!",
    "\u{2014}dash\u{2014} \u{201c}quotes\u{201d} \u{2018}single\u{2019} \u{2026} \u{20ac}5 \u{a9} \u{2122} \u{b0}C",
];

/// Texts that the keys of a file cannot always describe.
const HARD: &[&str] = &[
    " leading and trailing ",
    "  two   ",
    " ",
    "   ",
    " \n \n\n",
    "\ttab\t\ttabs \t mixed\t ",
    "\u{c9}COLE \u{c9}cole \u{dc}BER\u{fc}ber \u{41f}\u{420}\u{418}\u{432}\u{435}\u{442} \u{39a}\u{3b1}\u{3bb}\u{3b7}\u{39c}\u{395}",
    "aB\u{c9}d \u{d1}and\u{fa} STRASSE\u{df} \u{1c5}a",
    "e\u{301}te\u{301} n\u{303}o a\u{308}\u{304} \u{65e5}\u{301} 1\u{301} !\u{301}x",
    "\u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947} \u{926}\u{941}\u{928}\u{93f}\u{92f}\u{93e} \u{966}\u{967}\u{968}",
    "\u{e2a}\u{e27}\u{e31}\u{e2a}\u{e14}\u{e35} \u{e44}\u{e17}\u{e22} \u{1019}\u{103c}\u{1014}\u{103a}",
    "\u{d55c}\u{ad6d}\u{c5b4} \u{d14d}\u{c2a4}\u{d2b8} \u{1112}\u{1161}\u{11ab}",
    "\u{ff21}\u{ff22}\u{ff43} \u{ff11}\u{ff12}\u{ff13} \u{fb01}n \u{2460}\u{2161}\u{bd} x\u{b2}",
    "\u{3000}a\u{3000}\u{3000}b \u{a0}c\u{a0}\u{a0}d\u{2003}\u{2009}e\u{85}f\u{200b}g\u{2028}h",
    "a\u{b}b\u{c}c\u{1}d\u{7f}e\u{ad}f\u{feff}g",
    "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{1f1e9}\u{1f1ea} \u{2764}\u{fe0f} \u{1f44d}\u{1f3fd}",
    "\u{2581}a \u{2581}\u{2581} b\u{2581}c",
    "\u{10348}\u{1d49c}\u{1d7d8}",
    "\u{2019}s \u{2018}twas don\u{2019}t I\u{2019}LL",
    " a",
    "  a",
    "\n a",
    "a ",
    "a  ",
    "\ta",
];

/// The first text that a tokenizer does not tokenize like the folder; an error if it is a plain one. With `all`, the text
/// of every token is tried.
pub(super) fn difference(
    ours: &Tokenizer,
    folder: &LibraryFolder,
    all: bool,
) -> Result<Option<String>, String> {
    let differs = |text: &str| {
        let theirs = ids(&folder.parsed.library, text).ok();
        theirs.is_none() || ours.encode(text, false, true).ok() != theirs
    };
    let short = |text: &str| text.chars().take(80).collect::<String>();
    if let Some(text) = PLAIN.iter().find(|text| differs(text)) {
        return Err(format!("`{}` becomes other tokens", short(text)));
    }
    let more = [specials(&folder.tokens), pieces(ours, &folder.tokens, all)];
    let hard = HARD.iter().copied();
    let mut texts = hard.chain(more.iter().flatten().map(String::as_str));
    if let Some(text) = texts.find(|text| differs(text)) {
        return Ok(Some(short(text)));
    }
    let framed = ours.encode(PLAIN[0], true, true).ok();
    let (first, last) = &folder.ids.frame;
    let theirs = ids(&folder.parsed.library, PLAIN[0]).ok();
    let is_same = framed == theirs.map(|ids| [first, &ids[..], last].concat());
    Ok((!is_same).then(|| "the tokens that start and end a text".to_owned()))
}

/// The texts of tokens, several joined in a text if not all are tried.
fn pieces(ours: &Tokenizer, tokens: &[FolderToken], all: bool) -> Vec<String> {
    const SAMPLE: usize = 2048;
    let (step, size) = match all {
        true => (1, 1),
        false => (tokens.len().div_ceil(SAMPLE).max(1), 8),
    };
    let normal = (0..)
        .zip(tokens)
        .filter(|(_, token)| token.kind == TokenKind::Normal);
    let texts: Vec<&str> = normal
        .step_by(step)
        .filter_map(|(id, _)| std::str::from_utf8(ours.piece(id)).ok())
        .collect();
    texts.chunks(size).map(<[&str]>::concat).collect()
}

/// Texts with special tokens between words, white space and each other.
fn specials(tokens: &[FolderToken]) -> Vec<String> {
    const SPECIALS: usize = 64;
    let is_special =
        |token: &&FolderToken| matches!(token.kind, TokenKind::Control | TokenKind::UserDefined);
    let texts = tokens.iter().filter(is_special).take(SPECIALS);
    texts
        .map(|FolderToken { text: t, .. }| format!("{t}a{t}b {t} c  {t}  d\n{t}\n{t}{t} {t}. e"))
        .collect()
}

/// The pre-tokenizer that splits all plain texts like the folder and most hard ones, and a hard one that it splits
/// differently. Of several, one that treats whole words alike.
pub(super) fn pre_tokenizer(
    parsed: &TokenizerJson,
    ignore_merges: bool,
) -> Result<(&'static Row, Option<&'static str>), String> {
    let split = |texts: &[&'static str]| {
        let texts = texts.iter().map(|text| SplitText::of(parsed, text));
        texts.collect::<Result<Vec<_>, _>>()
    };
    let (plain, hard) = (split(PLAIN)?, split(HARD)?);
    let mut best = None;
    for row in pretokenizer::rows() {
        if row.spelling != VocabularySpelling::ByteLevel || row.escapes_spaces {
            continue;
        }
        let splitter = Splitter::new(&row.steps).map_err(|error| error.to_string())?;
        if !plain.iter().all(|text| text.is_split_by(&splitter)) {
            continue;
        }
        let mut others = hard.iter().filter(|text| !text.is_split_by(&splitter));
        let differs = others.next().map(|text| text.from);
        let n_others = usize::from(differs.is_some()) + others.count();
        let rank = (n_others, row.ignore_merges != ignore_merges);
        if best.as_ref().is_none_or(|(other, _)| rank < *other) {
            best = Some((rank, (row, differs)));
        }
    }
    let (_, found) = best.ok_or("no known pre-tokenizer cuts texts into the same words")?;
    Ok(found)
}

/// A text with the words into which a folder splits it.
struct SplitText {
    from: &'static str,
    /// The text after the folder's normalisation.
    text: String,
    words: Vec<Vec<u8>>,
}

impl SplitText {
    fn of(parsed: &TokenizerJson, from: &'static str) -> Result<Self, String> {
        guarded(|| {
            let mut text = NormalizedString::from(from);
            if let Some(normalizer) = parsed.library.get_normalizer() {
                normalizer.normalize(&mut text)?;
            }
            let normalised = text.get().to_owned();
            let mut cut = PreTokenizedString::from(text);
            if let Some(pre_tokenizer) = parsed.library.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut cut)?;
            }
            let words = cut.get_splits(OffsetReferential::Normalized, OffsetType::None);
            let bytes = |word: &str| byte_level::bytes_of(word).unwrap_or_default();
            Ok(Self {
                from,
                text: normalised,
                words: words.into_iter().map(|(word, ..)| bytes(word)).collect(),
            })
        })
    }

    fn is_split_by(&self, splitter: &Splitter) -> bool {
        let words = splitter.split(&self.text).into_iter();
        words
            .map(|word| &self.text.as_bytes()[word])
            .eq(self.words.iter().map(Vec::as_slice))
    }
}
