//! Dates of signatures.

use time::OffsetDateTime;
use time::PrimitiveDateTime;
use time::format_description::StaticFormatDescription;
use time::macros::format_description;

const AMZ_DATE: StaticFormatDescription = format_description!("[year][month][day]T[hour][minute][second]Z");

/// Parses a date in the format of signatures, `YYYYMMDDTHHMMSSZ`, into seconds since the Unix epoch.
pub(crate) fn parse_amz_date(text: &str) -> Option<u64> {
    let date = PrimitiveDateTime::parse(text, AMZ_DATE).ok()?;
    date.assume_utc().unix_timestamp().try_into().ok()
}

/// Formats a date as [`parse_amz_date`] reads it. Returns none for a year beyond 9999.
pub(crate) fn format_amz_date(date: OffsetDateTime) -> Option<String> {
    date.to_utc().format(AMZ_DATE).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn dates_survive_their_text(seconds in 0i64..253_402_300_799) {
            let text = format_amz_date(OffsetDateTime::from_unix_timestamp(seconds).unwrap()).unwrap();
            prop_assert_eq!(parse_amz_date(&text), Some(seconds.unsigned_abs()));
        }

        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _ = parse_amz_date(&text);
        }
    }

    #[test]
    fn known_dates() {
        assert_eq!(parse_amz_date("20130524T000000Z"), Some(1_369_353_600));
        assert_eq!(parse_amz_date("20000229T235959Z"), Some(951_868_799));
        for wrong in [
            "20130524T000000",
            "20131324T000000Z",
            "20130229T000000Z",
            "2013-524T000000Z",
            "20130524T250000Z",
            "19691231T235959Z",
            "",
        ] {
            assert_eq!(parse_amz_date(wrong), None, "{wrong}");
        }
    }
}
