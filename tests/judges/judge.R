# Recompute with R what vitcli computes: crossed intervals, sign flips, Holm, factorial effects.
# Run:  Rscript judge.R penicillin.csv predictions.csv factorial.csv > judged.json
suppressMessages({library(lme4); library(lmerTest); library(sandwich); library(exactRankTests); library(jsonlite)})
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

trials <- read.csv(files[3])
trials$seed <- factor(trials$seed)
names <- setdiff(colnames(trials), c("seed", "score"))
trials$cell <- interaction(trials[names], drop = TRUE)
full <- lm(as.formula(paste("score ~ seed + (", paste(names, collapse = " + "), ")^", length(names))), trials)
terms <- c(names, combn(names, 2, paste, collapse = ":"))
left <- 1 - hatvalues(full)
squares <- residuals(full)^2 / left
total <- diag(vcovHC(full, type = "HC2"))[terms]
by_cell <- sapply(levels(trials$cell), function(one)
  diag(vcovHC(full, omega = squares * (trials$cell == one)))[terms])
counts <- as.numeric(table(trials$cell)[levels(trials$cell)])
freedom <- total^2 / rowSums(sweep(by_cell^2, 2, counts - 1, "/"))
p <- 2 * pt(-abs(coef(full)[terms]) / sqrt(total), freedom)
factorial <- data.frame(term = terms, value = coef(full)[terms], error = sqrt(total),
                        hc3 = sqrt(diag(vcovHC(full, type = "HC3"))[terms]), freedom = freedom,
                        p = p, holm = p.adjust(p, "holm"))
cat(toJSON(list(penicillin = crossed(files[1]), predictions = crossed(files[2]), flips = flips, factorial = factorial),
           digits = 12, auto_unbox = TRUE, pretty = 1), "\n")
