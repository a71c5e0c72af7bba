# Recompute with R what vitcli computes: crossed intervals, sign flips, Holm, factorial effects.
# Run:  Rscript judge.R penicillin.csv predictions.csv factorial.csv > judged.json
suppressMessages({library(lme4); library(lmerTest); library(exactRankTests); library(jsonlite)})
files <- commandArgs(trailingOnly = TRUE)

# The two-way random-effects interval of a mean: columns `one`, `other` and `score`.
crossed <- function(file) {
  table <- read.csv(file)
  fit <- lmer(score ~ 1 + (1 | one) + (1 | other), table)
  parts <- as.data.frame(VarCorr(fit))
  row <- coef(summary(fit))[1, ]
  list(mean = row[["Estimate"]], error = row[["Std. Error"]], freedom = row[["df"]],
       one = parts$vcov[parts$grp == "one"], other = parts$vcov[parts$grp == "other"],
       residual = parts$vcov[parts$grp == "Residual"])
}

# Scores in hundredths are whole numbers, which perm.test needs.
whole <- c(3, -1, 4, 1, 5, 9, 2, 6)
flips <- perm.test(whole, paired = FALSE, exact = TRUE)$p.value

# A paired test of each effect: one difference for each seed. Of the first three seeds, the interval
# of a plan of three, which has the level 0.9 x 0.05.
trials <- read.csv(files[3])
names <- setdiff(colnames(trials), c("seed", "score"))
factorial <- lapply(c(as.list(names), combn(names, 2, simplify = FALSE)), function(term) {
  signs <- apply(sign(trials[term]), 1, prod)
  sums <- tapply(signs * trials$score, trials$seed, sum)
  each <- sums * 2^length(term) / 2^length(names)
  interval <- t.test(each[1:3], conf.level = 1 - 0.9 * 0.05)$conf.int
  list(term = paste(term, collapse = ":"), value = mean(each), low = interval[1], high = interval[2],
       p = max(t.test(each)$p.value, perm.test(as.vector(sums), exact = TRUE)$p.value))
})
factorial <- do.call(rbind, lapply(factorial, as.data.frame))
factorial$holm <- p.adjust(factorial$p, "holm")
cat(toJSON(list(penicillin = crossed(files[1]), predictions = crossed(files[2]), flips = flips, factorial = factorial),
           digits = 12, auto_unbox = TRUE, pretty = 1), "\n")
