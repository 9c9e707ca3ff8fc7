//! Settings that are a number, or a word that stands for something else: in a file as TOML has them.

/// Has a setting that is read and shown as the text of a number of 16 bits, or as a word, be one or the other in a file.
macro_rules! number_or_word {
    ($setting:ty) => {
        impl serde::Serialize for $setting {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let text = self.to_string();
                match text.parse() {
                    Ok(number) => serializer.serialize_u16(number),
                    Err(_) => serializer.serialize_str(&text),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $setting {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                #[serde(untagged)]
                enum Either {
                    Number(u16),
                    Word(String),
                }
                let text = match Either::deserialize(deserializer)? {
                    Either::Number(number) => number.to_string(),
                    Either::Word(word) => word,
                };
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use number_or_word;
